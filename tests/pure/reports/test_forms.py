"""A report as a page, as JSON and as OSCAL: the same bytes from the same report, and nothing but text from others."""

import base64
import json
import re
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
from selectolax.lexbor import LexborHTMLParser as Html

from audit.errors import FormatError
from audit.reports.document import ControlReport
from audit.reports.forms import FORMS
from audit.reports.pack import PACKS
from audit.reports.repeating import read_report
from tests.pure.reports.made_report import report

HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(1)>\"'\u202e\x1b[2J"
MIXED = {
    "operation-five-seconds": [("2026-10", 4000, 3)],
    "operation-refusals": [],
    "operation-numbered": [],
    "change-prompts": [(HOSTILE, 2, 0)],
    "change-api-keys": [(f"client-{n:03}", 1, 0) for n in range(120)],
}


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("form", FORMS)
def test_the_same_report_has_the_same_bytes(pack: str, form: str) -> None:
    assert FORMS[form](report(pack, MIXED)) == FORMS[form](report(pack, MIXED))


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_carries_the_data_to_repeat_it(pack: str, form: str) -> None:
    made = report(pack, MIXED)
    stated = read_report(FORMS[form](made))
    assert (stated.form, stated.said) == (form, made.as_json())


@pytest.mark.parametrize("pack", PACKS)
def test_a_page_has_no_script_and_no_other_origin_and_its_policy_allows_none(pack: str) -> None:
    page = FORMS["html"](report(pack, MIXED)).decode()
    tree = Html(page)
    (policy,) = [
        each.attributes["content"] or "" for each in tree.css('meta[http-equiv="Content-Security-Policy"]')
    ]
    (style,) = re.findall(r"<style>(.*)</style>", page, re.DOTALL)
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "http" not in style and "url(" not in style and "@import" not in style
    assert not tree.css("script, img, iframe, object, link, form, [style], [onerror], [onclick]")
    addresses = [each.attributes["href"] or "" for each in tree.css("[href]")]
    assert all(each.startswith(("#", "data:application/json;base64,")) for each in addresses)
    assert all(tree.css(each.replace("#", "#", 1)) for each in addresses if each.startswith("#"))


def test_what_is_hostile_is_text_in_the_page() -> None:
    page = FORMS["html"](report("change", MIXED)).decode()
    assert "&lt;/style&gt;&lt;script&gt;" in page
    assert "\u202e" not in page and "\x1b" not in page
    assert page.count("</style>") == 1


@pytest.mark.parametrize("pack", PACKS)
def test_every_control_has_its_status_in_words_with_a_shape_and_its_query_and_proof(pack: str) -> None:
    made = report(pack, MIXED)
    tree = Html(FORMS["html"](made).decode())
    for each in made.controls:
        (section,) = tree.css(f"section#{each.control.id}")
        (status,) = section.css(".status")
        assert (status.text(), len(status.css("svg"))) == (each.judged.status, 1)
        assert each.judged.words.replace("`", "") in section.text()
        assert each.control.met.replace("`", "") in section.text()
        if each.query:
            assert tree.css(f"#query-{each.control.id}")
            assert each.query_sha256 in tree.text() and each.result_sha256 in tree.text()


def test_a_long_result_is_cut_on_the_page_and_whole_in_the_data() -> None:
    made = report("change", MIXED)
    page = FORMS["html"](made).decode()
    assert "And 20 more rows" in page and "client-119" not in page
    assert "client-119" in FORMS["json"](made).decode()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]\n", b"<!DOCTYPE html>", b'{"assessment-results":1}', b"\xff", b"{" * 10**5,
                                     b'{"form":"affidavit-report-1","pack":"operation"}\n'])  # fmt: skip
def test_what_is_no_report_is_refused_in_words(content: bytes) -> None:
    with pytest.raises(FormatError):
        read_report(content)


def _results(pack: str, records: int = 4212) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FORMS["oscal"](report(pack, MIXED, records)))["assessment-results"]
    return found


TOKEN = re.compile(r"[^\W\d][\w.-]*")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


# The constraints of NIST's model of assessment results, 1.1.3, on which this document relies. The model itself is in no package that
# could be pinned here without its tools, so they are written out.
@pytest.mark.parametrize("pack", PACKS)
def test_oscal_has_what_the_model_requires(pack: str) -> None:
    said = _results(pack)
    assert set(said) == {"uuid", "metadata", "import-ap", "results", "back-matter"}
    assert {"title", "last-modified", "version", "oscal-version"} <= set(said["metadata"])
    assert said["metadata"]["oscal-version"] == "1.1.3"
    (result,) = said["results"]
    assert {"uuid", "title", "description", "start", "reviewed-controls"} <= set(result)
    for seen in result["observations"]:
        assert {"uuid", "description", "methods", "collected"} <= set(seen)
        assert set(seen["methods"]) <= {"EXAMINE", "INTERVIEW", "TEST", "UNKNOWN"}
    for finding in result.get("findings", ()):
        assert {"uuid", "title", "description", "target"} <= set(finding)
        assert finding["target"]["type"] in {"objective-id", "statement-id"}
        assert finding["target"]["status"]["state"] in {"satisfied", "not-satisfied"}
    for name, value in _members(said):
        if name.endswith("uuid"):
            assert str(UUID(value)) == value and UUID(value).version == 5
        if name in {"control-id", "target-id", "name"}:
            assert TOKEN.fullmatch(value)
        if name in {"start", "end", "collected", "last-modified"}:
            assert TIME.fullmatch(value)
        if isinstance(value, str):
            assert value.strip()
        assert value != []


@pytest.mark.parametrize("pack", PACKS)
def test_oscal_has_each_id_once_and_refers_to_what_is_there(pack: str) -> None:
    said = _results(pack)
    own = [value for name, value in _members(said) if name == "uuid"]
    assert len(set(own)) == len(own)
    assert said["import-ap"]["href"].removeprefix("#") in own
    assert all(value in own for name, value in _members(said) if name == "observation-uuid")
    selected = [value for name, value in _members(said) if name == "control-id"]
    assert selected == [each.control.id for each in report(pack, MIXED).controls]


@pytest.mark.parametrize("pack", PACKS)
def test_only_what_is_met_or_not_met_is_a_finding_in_oscal(pack: str) -> None:
    made, (result,) = report(pack, MIXED), _results(pack)["results"]
    states = {
        each["target"]["target-id"]: each["target"]["status"]["state"] for each in result.get("findings", ())
    }
    names = {"met": "satisfied", "not met": "not-satisfied"}
    assert states == {
        each.control.id: names[each.judged.status] for each in made.controls if each.judged.status in names
    }
    assert len(result["observations"]) == len(made.controls)
    without = _results(pack, records=0)["results"][0].get("findings", ())
    assert not any(each["target"]["status"]["state"] == "satisfied" for each in without)


def _members(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list):
        return [pair for each in value for pair in _members(each)]
    if isinstance(value, dict):
        return [*value.items(), *(pair for each in value.values() for pair in _members(each))]
    return []


# Seen red with the whole report written again for each control.
def test_oscal_writes_the_report_into_itself_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, written, count = report("operation", MIXED), ControlReport.to_bytes, list[None]()

    def counted(one: ControlReport) -> bytes:
        count.append(None)
        return written(one)

    monkeypatch.setattr(ControlReport, "to_bytes", counted)
    FORMS["oscal"](made)
    assert len(count) == 1
