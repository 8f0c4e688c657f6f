"""engine/refusals.py is the only list of refusal reasons: no place that names them lacks one or has one more."""

import json
import re
from collections.abc import Callable

import pytest

from engine.refusals import RefusalReason
from tests import openapi
from tests.conftest import ROOT

REASONS = [reason.value for reason in RefusalReason]


def read(path: str) -> str:
    return (ROOT / path).read_text()


def in_page() -> list[str]:
    (listed,) = re.findall(r"const REASONS = \{(.*?)\};", read("engine/http/page/page.html"), re.DOTALL)
    return re.findall(r"^  (\w+): \".+\",$", listed, re.MULTILINE)


def in_panel(language: str) -> list[str]:
    return re.findall(r'"reason\.(\w+)": ".+",', read(f"docusaurus/src/texts/{language}.ts"))


def in_view() -> list[str]:
    (comment,) = re.findall(r"audit_refusals\.reason IS '(.+)';", read("sql/schema.sql"))
    return re.findall(r"\w+", comment.removeprefix("Why: "))


def in_interface() -> list[str]:
    found: list[str] = json.loads(openapi.text())["components"]["schemas"]["RefusalReason"]["enum"]
    return found


PLACES = {
    "page": in_page,
    "panel in English": lambda: in_panel("en"),
    "panel in German": lambda: in_panel("de"),
    "view": in_view,
    "interface": in_interface,
}


# Seen red with `model_refused` left out of each of them.
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_every_place_names_every_reason(place: Callable[[], list[str]]) -> None:
    assert sorted(place()) == sorted(REASONS)
