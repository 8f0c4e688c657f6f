"""The packs as data: each control can be measured, explained and traced to a provision."""

import re

import pytest

from audit.proof.record import PERSONAL
from audit.reports.pack import FRAMES, PACKS, Control, pack_of, provisions
from engine.refusals import RefusalReason
from tests.pure.reports.made_report import AS_OF

CONTROLS = [control for pack in PACKS for control in pack_of(pack).controls]


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.id)
def test_a_control_has_a_query_with_its_figure_or_says_why_it_has_none(control: Control) -> None:
    assert control.title and control.shows and control.met and control.provisions
    assert bool(control.query) != bool(control.because)
    assert bool(control.query) == bool(control.figure)
    assert not control.query or {"counted", "violations"} <= set(re.findall(r"AS (\w+)", control.query))


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.id)
def test_no_control_reads_a_personal_column(control: Control) -> None:
    words = set(re.findall(r"\w+", AS_OF.query(control.query)))
    assert not words & PERSONAL


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.id)
def test_a_query_is_limited_to_what_the_heads_of_the_report_seal_or_to_its_time(control: Control) -> None:
    limits = ("FROM records", "JOIN records", "FROM heads", "$taken_at", "$until")
    assert not control.query or any(limit in control.query for limit in limits)


def test_every_control_has_a_name_of_its_own_that_begins_with_its_pack() -> None:
    assert len({control.id for control in CONTROLS}) == len(CONTROLS)
    for pack in PACKS:
        assert all(control.id.startswith(f"{pack}-") for control in pack_of(pack).controls)


def test_every_mapping_names_a_known_provision_and_every_provision_is_named() -> None:
    assert {name for control in CONTROLS for name in control.provisions} == set(provisions())
    assert {each.frame for each in provisions().values()} == set(FRAMES)


def test_the_reasons_that_a_report_knows_are_those_that_the_engine_gives() -> None:
    query = next(each.query for each in CONTROLS if each.id == "operation-refusals")
    assert {reason.value for reason in RefusalReason} == set(re.findall(r"'(\w+_\w+|underspecified)'", query))


@pytest.mark.parametrize(
    ("control", "provision"),
    [
        ("retention-erasures", "sec-17a-4-f-2-i"),  # an erasure that cannot be undone is what both forbid
        ("retention-erasures", "cfr-11-10-e"),
        ("retention-period", "sec-17a-4-f-2-i"),
        ("change-settings", "cfr-11-10-k"),  # of documents
        ("change-schema", "cfr-11-10-k"),
        (
            "operation-verified",
            "sec-17a-4-f-2-ii",
        ),  # asks for an automatic verification; people started these
        ("operation-outages", "soc2-cc7-5"),
    ],
)
def test_a_control_is_not_said_to_be_evidence_for_what_it_does_not_show(control: str, provision: str) -> None:
    """Seen red with each of these mappings."""
    assert [each.id for each in CONTROLS if each.id == control] == [control]
    assert all(provision not in each.provisions for each in CONTROLS if each.id == control)


@pytest.mark.parametrize(
    ("frame", "article"),
    {
        "AI Act 12": r"Regulation \(EU\) 2024/1689, Article 12\([12]\)",
        "AI Act 19": r"Regulation \(EU\) 2024/1689, Article 19\(1\)",
        "AI Act 26(6)": r"Regulation \(EU\) 2024/1689, Article 26\(6\)",
        "SOC 2 CC7": r"Trust services criteria, CC7\.[1-5]",
        "HIPAA 164.312(b)": r"45 CFR 164\.312\(b\)",
        "SEC 17a-4(f)": r"17 CFR 240\.17a-4\(f\)\(2\)\((?:i|ii|iv|v)\)",
        "21 CFR 11.10": r"21 CFR 11\.10\([bcek]\)",
    }.items(),
)
def test_a_provision_is_an_article_of_its_frame(frame: str, article: str) -> None:
    assert all(re.fullmatch(article, each.article) for each in provisions().values() if each.frame == frame)


def test_no_word_of_a_report_promises_compliance() -> None:
    words = " ".join(f"{c.title} {c.shows} {c.met} {c.figure} {c.absent} {c.because}" for c in CONTROLS)
    assert not re.search("complian|complies|certif", words, re.IGNORECASE)
