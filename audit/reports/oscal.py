"""A report as assessment results of OSCAL 1.1.3, NIST's format. Pure.

Ids are derived from content (UUIDv5), so the same report gives the same bytes. What was measured is an observation; what is met
or not met is a finding too. What was not measured or does not apply is an observation without a finding, and says why.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid5

from audit.package.manifest import time_text
from audit.reports.document import ControlReport, MeasuredControl
from audit.reports.pack import provisions

VERSION = "1.1.3"
_NAMES = UUID("6e7c53a4-6a3c-5d0e-9b1f-2c7a4f3d8e10")  # our own name space
_SPACE = "affidavit://report"  # OSCAL wants a URI: it is a name, and leads nowhere
_STATES = {"met": "satisfied", "not met": "not-satisfied"}
_TITLE = "Evidence from an audit log, for an assessment"

Object = Mapping[str, Any]


def to_bytes(report: ControlReport) -> bytes:
    document = {"assessment-results": _results(report)}
    return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _results(report: ControlReport) -> Object:
    content, plan = report.to_bytes().decode(), _id("plan", report.pack.id, report.version)
    return {
        "uuid": _id("assessment results", content),
        "metadata": {
            "title": f"{_TITLE}: {report.pack.title}",
            "last-modified": time_text(report.as_of.taken_at),
            "version": report.event,
            "oscal-version": VERSION,
            "props": [_prop("log-origin", report.origin or "none"), _prop("code-version", report.version)],
            "remarks": "A status says what the log shows of one control. Whether a provision applies, and whether it is met, is not for this document to say.",
        },
        "import-ap": {"href": f"#{plan}"},
        "results": [_result(report, content)],
        "back-matter": {"resources": [_plan(report, plan), _attachment(report, content), *_heads(report)]},
    }


def _result(report: ControlReport, content: str) -> Object:
    observations = [_observation(report, content, each) for each in report.controls]
    findings = [_finding(each, seen) for each, seen in zip(report.controls, observations, strict=True)
                if each.judged.status in _STATES]  # fmt: skip
    found = {
        "uuid": _id("result", content),
        "title": report.pack.title,
        "description": report.pack.shows,
        "start": time_text(report.as_of.since),
        "end": time_text(report.as_of.until),
        "reviewed-controls": {
            "control-selections": [{"include-controls": [{"control-id": each.control.id} for each in report.controls]}]
        },
        "observations": observations,
    }  # fmt: skip
    return found | ({"findings": findings} if findings else {})


def _observation(report: ControlReport, content: str, measured: MeasuredControl) -> Object:
    control, judged = measured.control, measured.judged
    props = [_prop("control-id", control.id), _prop("status", judged.status)]
    if measured.query:
        props += [
            _prop("query-sha256", measured.query_sha256), _prop("result-sha256", measured.result_sha256),
            _prop("counted", str(judged.counted)), _prop("violations", str(judged.violations)),
        ]  # fmt: skip
    seen: dict[str, Any] = {
        "uuid": _id("observation", content, control.id),
        "title": control.title,
        "description": f"{control.shows} Met means: {control.met}",
        "props": props,
        "methods": ["TEST" if measured.query else "UNKNOWN"],
        "types": ["control-objective"],
        "collected": time_text(report.as_of.taken_at),
        "remarks": f"{judged.status}: {judged.words}",
    }
    if measured.query:
        seen["relevant-evidence"] = [
            {"description": f"The query, which anybody can repeat:\n\n{measured.query}"}
        ]
    return seen


def _finding(measured: MeasuredControl, observation: Object) -> Object:
    control, judged, known = measured.control, measured.judged, provisions()
    articles = "; ".join(known[name].article for name in control.provisions)
    return {
        "uuid": _id("finding", observation["uuid"]),
        "title": control.title,
        "description": f"{judged.words} Evidence for: {articles}.",
        "target": {
            "type": "objective-id",
            "target-id": control.id,
            "status": {"state": _STATES[judged.status]},
        },
        "related-observations": [{"observation-uuid": observation["uuid"]}],
    }


def _plan(report: ControlReport, name: str) -> Object:
    about = f"The pack {report.pack.id} of version {report.version}: its controls, their queries and rules are declared in the product."
    return {"uuid": name, "title": f"Pack {report.pack.id}", "description": about}


def _attachment(report: ControlReport, content: str) -> Object:
    """From which `affidavit audit report --repeat` measures anew."""
    data = base64.b64encode(content.encode()).decode()
    return {
        "uuid": _id("attachment", content),
        "title": "The report's data",
        "base64": {"filename": f"report-{report.pack.id}.json", "media-type": "application/json", "value": data},
    }  # fmt: skip


def _heads(report: ControlReport) -> Sequence[Object]:
    return [
        {
            "uuid": _id("head", report.origin, f"{head.month:%Y-%m}", str(head.tree_size), head.root),
            "title": f"Head of {head.month:%Y-%m}",
            "props": [
                _prop("month", f"{head.month:%Y-%m}"), _prop("tree-size", str(head.tree_size)), _prop("root", head.root),
            ],
        }
        for head in report.as_of.heads
    ]  # fmt: skip


def _prop(name: str, value: str) -> Object:
    return {"name": name, "ns": _SPACE, "value": value}


def _id(*parts: str) -> str:
    return str(uuid5(_NAMES, "\n".join(parts)))
