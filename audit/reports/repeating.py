"""Compares a report with what is measured anew for the same period as of the same moment, and names each difference. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any
from uuid import UUID

from audit.package.manifest import time_text
from audit.proof.canonical import canonical_text, read_line
from audit.reports.as_of import AsOf
from audit.reports.document import FORM, ControlReport
from audit.reports.forms import FORMS, ReportFileError, data_in
from audit.reports.pack import PACKS, Pack, pack_of

VERSION_CHARACTERS_MAX = 100
_ROWS_NAMED = 5  # of a control


@dataclass(frozen=True, slots=True)
class StatedReport:
    """What a file says, as far as it must be known to repeat it."""

    content: bytes
    form: str
    said: Mapping[str, Any]
    pack: Pack
    period: AsOf
    event: UUID

    @property
    def version(self) -> str:
        return str(self.said.get("version"))[:VERSION_CHARACTERS_MAX]


def read_report(content: bytes) -> StatedReport:
    form, line = data_in(content)
    said = read_line(line, "The report", ReportFileError)
    if said.get("form") != FORM or said.get("pack") not in PACKS:
        raise ReportFileError("This is no report of a form and a pack that this version knows")
    try:
        since, until, taken_at = (_moment(said[name]) for name in ("since", "until", "taken_at"))
        period = AsOf(since, until, taken_at)
        return StatedReport(content, form, said, pack_of(said["pack"]), period, UUID(said["event"]))
    except (KeyError, TypeError, ValueError, AttributeError) as wrong:
        raise ReportFileError("This is no report: its period or its record cannot be read") from wrong


def differences(stated: StatedReport, made: ControlReport) -> list[str]:
    """In words, for each place; `made` is of the same period, version and record."""
    found = list(_between(stated.said, made.as_json()))
    if not found and stated.content != FORMS[stated.form](made):
        found.append(
            "What the file shows is not what its data says: it was changed, or another version wrote it"
        )
    return found


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if time_text(moment) != text:
        raise ValueError
    return moment


def _between(stated: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*stated, *made} - {"controls", "heads"}):
        if stated.get(name) != made.get(name):
            yield f"{name}: the file says {_shown(stated.get(name))}, measured anew it is {_shown(made.get(name))}"
    yield from _heads(stated.get("heads"), made["heads"])
    theirs = stated.get("controls")
    if not isinstance(theirs, list) or not all(isinstance(each, dict) for each in theirs):
        yield "controls: the file has none that can be read"
        return
    by_id = {str(each.get("id")): each for each in theirs}
    if [each.get("id") for each in theirs] != [each["id"] for each in made["controls"]]:
        yield "controls: the file has other ones than this version of the pack, or in another order"
    for each in made["controls"]:
        if each["id"] in by_id:
            yield from _control(by_id[each["id"]], each)


def _heads(stated: Any, made: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for theirs, ours in zip_longest(stated if isinstance(stated, list) else [], made):
        if theirs != ours:
            yield f"head: the file says {_shown(theirs)}, the log has {_shown(ours)}"


def _control(stated: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*stated, *made} - {"rows", "query", "result_sha256"}):
        if stated.get(name) != made.get(name):
            yield f"{made['id']}: {name}: the file says {_shown(stated.get(name))}, measured anew it is {_shown(made.get(name))}"
    if stated.get("query") != made["query"]:
        yield f"{made['id']}: query: the file has another one than this version of the pack"
    yield from _rows(made["id"], stated.get("rows"), made["rows"])
    if stated.get("rows") == made["rows"] and stated.get("result_sha256") != made["result_sha256"]:
        yield f"{made['id']}: result_sha256: it is not that of the rows in the file"


def _rows(control: str, stated: Any, made: Sequence[Any]) -> Iterator[str]:
    theirs = {_shown(row, whole=True) for row in stated} if isinstance(stated, list) else set()
    ours = {canonical_text(row) for row in made}
    gone, new = sorted(theirs - ours), sorted(ours - theirs)
    for row in gone[:_ROWS_NAMED]:
        yield f"{control}: row: only in the file: {row}"
    for row in new[:_ROWS_NAMED]:
        yield f"{control}: row: only in the log: {row}"
    if len(gone) + len(new) > 2 * _ROWS_NAMED:
        yield f"{control}: {len(gone)} rows are only in the file, {len(new)} only in the log"


def _shown(value: Any, *, whole: bool = False) -> str:
    text = canonical_text(value)
    return text if whole or len(text) <= VERSION_CHARACTERS_MAX else f"{text[:VERSION_CHARACTERS_MAX]}…"
