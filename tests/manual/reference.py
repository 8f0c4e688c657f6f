"""`make reference` writes the generated pages of docs/reference/: each from what the product itself uses.

A test compares them, so a page cannot be out of date.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from audit.proof.verdict import Verdict
from engine import errors
from engine.cli.main import COMMANDS, parser
from engine.errors import RequestError
from engine.http.metrics import FAMILIES, VERIFICATION_FAMILIES
from engine.refusals import RefusalReason
from engine.wiring.reload import RELOADED
from tests import openapi
from tests.conftest import ROOT

FOLDER = ROOT / "docs" / "reference"
SETTINGS = ROOT / "config" / "engine.toml"
SCHEMA = ROOT / "sql" / "schema.sql"
_COMMENT = re.compile(
    r"^COMMENT ON (VIEW|COLUMN) public\.([a-z_]+)(?:\.\"?([a-z_]+)\"?)? IS '((?:[^']|'')*)';$", re.MULTILINE
)


@cache
def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    return {name: text() for name, text in PAGES.items()}


def _command_line() -> str:
    return _page(
        "Command line",
        f"The program has these commands: {_named(is_of_log=False)}. Those of the log are {_named(is_of_log=True)}. "
        "Exit code 0 if all is well, 1 if a command failed or found a problem, 2 for wrong usage.",
        *_commands(),
    )


def _named(*, is_of_log: bool) -> str:
    return ", ".join(f"`{name}`" for name in COMMANDS if name.startswith("audit ") == is_of_log)


def _commands() -> Iterator[str]:
    for name, command in COMMANDS.items():
        below = _parser_of(name)
        yield f"## `affidavit {name}`\n\n{_escaped(below.description or '')}\n\n```\n{command.example}\n```"
        rows = [
            (_names(action), _escaped((action.help or "") % _values(action)))
            for action in below._actions
            if action.dest != "help"
        ]
        if rows:
            yield _table(("argument", "what it means"), rows)


_parser = cache(parser)


def _parser_of(name: str) -> argparse.ArgumentParser:
    found = _parser()
    for word in name.split():
        (below,) = (action for action in found._actions if isinstance(action, argparse._SubParsersAction))
        found = below.choices[word]
    return found


def _names(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    names = ", ".join(action.option_strings)
    return f"`{names} {value}`" if names and value else f"`{names or value}`"


def _values(action: argparse.Action) -> dict[str, Any]:
    return {"default": action.default, "metavar": action.metavar, "prog": "affidavit"}


def _settings() -> str:
    said = (
        "Every setting with its default, from `config/engine.toml`. An environment variable overrides each:"
        " `AFFIDAVIT_<TABLE>__<KEY>`. A file of your own that `AFFIDAVIT_SETTINGS_FILE` names stands between the two: it has only"
        " what differs. An unknown name is an error. On SIGHUP `affidavit serve` reads the files again and takes over the tables"
        f" {_listed(RELOADED)}; all others need a restart."
    )
    return _page("Settings", said, *_setting_tables())


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _setting_tables() -> Iterator[str]:
    for block in re.split(r"^(?=\[)", SETTINGS.read_text(), flags=re.MULTILINE):
        table = re.match(r"\[(\w+)\]\n", block)
        comment: list[str] = []
        rows = []
        for line in block.splitlines():
            if line.startswith("# "):
                comment.append(line[2:])
            elif pair := re.match(r"(\w+) = (.+)", line):
                rows.append((f"`{pair[1]}`", f"`{pair[2]}`", _escaped(" ".join(comment))))
                comment = []
            elif not line:
                comment = []
        yield f"## `{table[1]}`" if table else "## Everywhere"
        yield _table(("setting", "default", "what it means"), rows)


def _http() -> str:
    said = "Every address. Bodies and examples are in [openapi.json](openapi.json), which a running engine serves at `/openapi.json`."
    return _page("HTTP", said, *_addresses())


def _addresses() -> Iterator[str]:
    for address, methods in openapi.document()["paths"].items():
        for method, operation in methods.items():
            yield f"## `{method.upper()} {address}`\n\n{_escaped(operation.get('description') or operation.get('summary', ''))}"
            parameters = [
                (f"`{given['name']}`", given["in"], _escaped(given.get("description", "")))
                for given in operation.get("parameters", [])
            ]
            if parameters:
                yield _table(("parameter", "where", "what it means"), parameters)
            yield "Statuses: " + ", ".join(operation["responses"]) + "."


def _log() -> str:
    said = "Every view that auditors query, and the table behind them, with the comments that `\\d+` shows in psql."
    return _page("The log: views and columns", said, *_views())


def _views() -> Iterator[str]:
    views: dict[str, str] = {"audit_logs": "One row for each request on every endpoint."}
    columns: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for kind, relation, column, comment in _COMMENT.findall(SCHEMA.read_text()):
        words = _escaped(comment.replace("''", "'"))
        if kind == "VIEW":
            views[relation] = words
        else:
            columns[relation].append((f"`{column}`", words))
    for relation, words in views.items():
        yield f"## {relation}\n\n{words}"
        yield _table(("column", "what it means"), columns[relation])


def _metrics() -> str:
    rows, others = (
        [(f"`{name}`", kind, _escaped(words)) for name, (kind, words) in families.items()]
        for families in (FAMILIES, VERIFICATION_FAMILIES)
    )
    return _page(
        "Metrics",
        "`GET /metrics`, in Prometheus' text format. No label comes from a client.",
        _table(("metric", "kind", "what it means"), rows),
        "`affidavit audit verify --metrics FILE` writes these into a file, for the textfile collector of node_exporter:",
        _table(("metric", "kind", "what it means"), others),
    )


def _errors() -> str:
    said = "Errors are problem documents (RFC 9457): `status`, `title`, `detail` for users, `error_type`, `retryable`, `request_id`, `query_id`."
    found = sorted(_request_errors(RequestError), key=lambda each: (each.status, each.__name__))
    rows = [
        (
            str(each.status),
            f"`{each.error_type}`",
            _escaped(each.title),
            _escaped(each.detail),
            "yes" if each.retryable else "no",
        )
        for each in found
    ]
    return _page(
        "Errors", said, _table(("status", "`error_type`", "title", "what users read", "retry"), rows)
    )


def _request_errors(base: type[RequestError]) -> Iterator[type[RequestError]]:
    for each in base.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
        yield from _request_errors(each)


def _refusals_and_verdicts() -> str:
    reasons = [(f"`{reason}`", _escaped(reason.message())) for reason in RefusalReason]
    verdicts = [(f"`{verdict}`", _MEANING[verdict]) for verdict in Verdict]
    return _page(
        "Refusals and verdicts",
        "A refusal is an answer with `outcome` `refused`, no citations, and a `reason`.",
        _table(("reason", "what readers read"), reasons),
        "## Verdicts\n\nWhat `verify`, `check` and both verifiers say, the worst first. The verdict of a report is that of its worst finding.",
        _table(("verdict", "what it means"), verdicts),
    )


_MEANING = {
    Verdict.TAMPERED: "Something differs from what was signed.",
    Verdict.MISSING: "Something that was signed is not there.",
    Verdict.WRONG_VAULT: "The vault holds no anchor of this log, although the log says that it was anchored: another vault was named, or this one was emptied.",
    Verdict.LOST_BY_FAILOVER: "An operator has signed that a failover or a restore lost records. What is left is proven.",
    Verdict.CANNOT_TELL: "A part that the check needs could not be read.",
    Verdict.UNSEALED: "The record is too new to be sealed, or was never sealed: the finding says which.",
    Verdict.ARCHIVED: "Leaves and manifest are right; the rows are in an archive, which `verify --archive` checks.",
    Verdict.ERASED: "The hash is proven, and the personal text was erased with a signature.",
    Verdict.VALID: "Everything was recomputed and is as it was signed.",
}


def _page(title: str, said: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", f"{said} Generated by `make reference`; do not edit.", *parts]) + "\n"


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _escaped(words: str) -> str:
    """As Markdown and as MDX: braces and angle brackets outside of code are text."""
    parts = re.split(r"(`[^`]*`)", " ".join(words.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([<{])", r"\\\1", part) for part in parts)


PAGES = {
    "command-line.md": _command_line,
    "settings.md": _settings,
    "http.md": _http,
    "log.md": _log,
    "metrics.md": _metrics,
    "errors.md": _errors,
    "refusals-and-verdicts.md": _refusals_and_verdicts,
}

if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
