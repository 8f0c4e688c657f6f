"""Packages that were tampered with, each with the rung and the verdict on which it must be found.

Those who only change bytes are found by the manifest. So most of these are by somebody who holds the log's key and signs the
manifest anew: only what lies below can find them.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from typing import Any, NamedTuple

from audit.proof.canonical import canonical_json
from audit.proof.checkpoint import Checkpoint, open_note, sign_note
from audit.proof.keys import SigningKey
from tests.made_package import NOVEMBER, OCTOBER, of_two_months, zipped
from tests.proofs import KEY, STRANGER

RECORDS, EARLIER = "records/2026-11.jsonl", "records/2026-10.jsonl"


class Tampered(NamedTuple):
    name: str
    what: str  # the rung, or "package" or "coverage"
    verdict: str
    content: bytes


def every() -> Iterator[Tampered]:
    yield from _in_the_zip()
    yield from _in_the_records()
    yield from _in_the_heads()
    yield from _in_the_rest()


def _in_the_zip() -> Iterator[Tampered]:
    whole = of_two_months().zipped()
    files = of_two_months().files
    manifest = of_two_months().manifest(KEY)
    for name, content in {
        "bytes after the end": whole + b"x",
        "bytes before the beginning": b"x" + whole,
        "cut off": whole[:-1],
        "cut off in the middle": whole[: len(whole) // 2],
        "two headers that disagree": whole.replace(b"keys.pub", b"keys.bup", 1),
        "a byte of a file": whole.replace(b"# Evidence", b"# evidence", 1),
        "a date in a header": whole.replace(b"\x21\x00", b"\x22\x00", 1),
        "a file that is not listed": zipped(files | {"queries.json": files["queries.json"], "stamps/a.pem": b"x", "manifest.json": manifest}),
        "another order of the files": zipped(dict(sorted(files.items())) | {"manifest.json": manifest}),
        "a manifest of a stranger": of_two_months().zipped(STRANGER),
        "a manifest that was changed": zipped(files | {"manifest.json": manifest.replace(b'"redacted":false', b'"redacted":true')}),
        "no manifest": zipped(files),
        "a file that the manifest does not know": of_two_months().zipped(files={}),
        "the readme, not listed anew": zipped(files | {"README.md": b"# Believe me", "manifest.json": manifest}),
    }.items():  # fmt: skip
        yield Tampered(name, "package", "TAMPERED", content)
    without = {name: file for name, file in files.items() if name != "README.md"}
    yield Tampered(
        "a listed file that is not there", "package", "MISSING", zipped(without | {"manifest.json": manifest})
    )


def _in_the_records() -> Iterator[Tampered]:
    for name, what, change in (
        ("a word of an answer", "row", _in_row(answer_text="It measures nothing.")),
        ("another outcome", "leaf", _in_row(outcome="refused")),
        ("an older schema version, so that no signature is needed", "row", _in_row(schema_version=3)),
        ("a column more", "row", _in_row(rerank="x")),
        ("a salt", "row", _in_row(salt="\\x" + "00" * 32)),
        ("a signature of another row", "row", _signature_of_another),
        ("another place", "leaf", lambda body: body | {"leaf_index": 12}),
        ("a proof that is too long", "leaf", lambda body: body | {"proof": [*body["proof"], "00" * 32]}),
        ("a proof of another record", "leaf", lambda body: body | {"proof": body["proof"][::-1]}),
        ("another checkpoint", "month", lambda body: body | {"checkpoint": _text_of("checkpoints/2026-10.note")}),
        ("emptied without an erasure", "row", _emptied),
        ("a member more", "row", lambda body: body | {"note": "trust me"}),
    ):  # fmt: skip
        yield Tampered(f"{name} of a record", what, "TAMPERED", _signed_anew(RECORDS, _line(2, change)))
    for name, what, verdict, change_lines in (
        ("a record twice", "leaf", "TAMPERED", lambda lines: [*lines, lines[-1]]),
        ("two records in another order", "leaf", "TAMPERED", lambda lines: [lines[1], lines[0], *lines[2:]]),
        ("a record that is not there", "coverage", "MISSING", lambda lines: [*lines[:5], *lines[6:]]),
        ("the last record that is not there", "coverage", "MISSING", lambda lines: lines[:-1]),
        ("a line that is no record", "row", "TAMPERED", lambda lines: [b"{}\n", *lines[1:]]),
        ("a space in a line", "row", "TAMPERED", lambda lines: [b" " + lines[0], *lines[1:]]),
        ("a record without its end", "row", "TAMPERED", lambda lines: [*lines[:-1], lines[-1][:-1]]),
    ):  # fmt: skip
        yield Tampered(name, what, verdict, _signed_anew(RECORDS, _lines(change_lines)))
    package = of_two_months()
    package.files[EARLIER] += package.files[RECORDS].splitlines(keepends=True)[-1]
    yield Tampered("a record among those of another month", "month", "TAMPERED", package.zipped())


def _in_the_heads() -> Iterator[Tampered]:
    yield Tampered("a checkpoint of a stranger", "checkpoint", "TAMPERED", _with_checkpoint(STRANGER))
    yield Tampered(
        "a checkpoint of another log",
        "checkpoint",
        "TAMPERED",
        _with_checkpoint(KEY, origin="affidavit/other"),
    )
    yield Tampered("a rewritten tree", "vault", "TAMPERED", _with_checkpoint(KEY, root=b"\x00" * 32))
    yield Tampered(
        "a rewritten tree, and its records", "leaf", "TAMPERED", _with_checkpoint(KEY, root=b"\x00" * 32)
    )
    yield Tampered("a tree that was set back", "vault", "MISSING", _with_checkpoint(KEY, size=7))
    yield Tampered(
        "an earlier month that was set back", "month", "MISSING", _with_checkpoint(KEY, month=OCTOBER, size=4)
    )
    yield Tampered(
        "an earlier month that was rewritten",
        "month",
        "TAMPERED",
        _with_checkpoint(KEY, month=OCTOBER, root=b"\x01" * 32),
    )
    anchor, consistency = "anchors/2026-11/000000000011.note", "consistency/2026-11.json"
    for name, file, change in (
        ("an anchor of a stranger", anchor, lambda note: _resigned(note, STRANGER)),
        ("an anchor that is none", anchor, lambda _: b"x"),
        ("an anchor of another month", anchor, lambda _: of_two_months().files["anchors/2026-10/000000000003.note"]),
        ("an anchor of another tree", anchor, lambda note: _resigned(note, KEY, root=b"\x02" * 32)),
        ("a consistency proof", consistency, lambda line: line.replace(b'["', b'["00', 1)),
        ("no consistency proof", consistency, lambda _: canonical_json({"month": "2026-11", "size": 13, "proofs": {}}) + b"\n"),
        ("consistency proofs of another size", consistency, lambda line: line.replace(b'"size":13', b'"size":14')),
    ):  # fmt: skip
        yield Tampered(name, "vault", "TAMPERED", _signed_anew(file, change))
    for name, file, change in (
        ("a head of heads without a witness", "heads/head.note", lambda note: b"".join(note.splitlines(keepends=True)[:-1])),
        ("a cosignature", "heads/head.note", lambda note: note[:-10] + b"AAAAAAA==\n"),
        ("a head of heads of another size", "heads/head.note", lambda note: note.replace(b"\n2\n", b"\n3\n", 1)),
        ("a proof of another head", "heads/2026-11.tlog-proof", lambda _: of_two_months().files["heads/2026-10.tlog-proof"]),
        ("a proof of another index", "heads/2026-11.tlog-proof", lambda proof: proof.replace(b"index 1", b"index 0")),
    ):  # fmt: skip
        yield Tampered(name, "witness", "TAMPERED", _signed_anew(file, change))


def _in_the_rest() -> Iterator[Tampered]:
    for name, file, what, verdict, change in (
        ("a passage", "passages.jsonl", "words", "TAMPERED", lambda line: line.replace(b"acceleration", b"temperature")),
        ("a passage's file", "passages.jsonl", "words", "TAMPERED", lambda line: line.replace(b"sensors<b>.md", b"other.md")),
        ("a passage's spelling", "passages.jsonl", "words", "TAMPERED", lambda line: line.replace(b'{"book', b'{ "book')),
        ("no passage", "passages.jsonl", "words", "MISSING", lambda _: b""),
        ("a word of the spreadsheet", "records.csv", "words", "TAMPERED", lambda csv: csv.replace(b"measures acceleration", b"measures temperature", 1)),
        ("a line less of the spreadsheet", "records.csv", "words", "TAMPERED", lambda csv: b"\r\n".join(csv.split(b"\r\n")[:-2]) + b"\r\n"),
        ("a line more of the spreadsheet", "records.csv", "words", "TAMPERED", lambda csv: csv + csv.splitlines(keepends=True)[-1]),
        ("a quotation mark in the spreadsheet", "records.csv", "words", "TAMPERED", lambda csv: csv.replace(b"docs-site", b'docs"site', 1)),
        ("the names of the spreadsheet", "records.csv", "words", "TAMPERED", lambda csv: csv.replace(b"answer_text,", b"answer,", 1)),
        ("an erasure of a stranger", "erasures.jsonl", "row", "TAMPERED", _forged_erasure),
        ("no erasure", "erasures.jsonl", "row", "TAMPERED", lambda _: b""),
        ("coverage that is none", "coverage.json", "coverage", "TAMPERED", lambda _: b"{}\n"),
        ("coverage of other numbers", "coverage.json", "coverage", "TAMPERED", lambda line: line.replace(b'"records":13', b'"records":12')),
        ("coverage of a choice", "coverage.json", "coverage", "TAMPERED", lambda line: line.replace(b'"is_whole":true', b'"is_whole":false')),
        ("coverage of a log that was not whole", "coverage.json", "coverage", "MISSING", lambda line: line.replace(b'"VALID"', b'"MISSING"')),
    ):  # fmt: skip
        yield Tampered(name, what, verdict, _signed_anew(file, change))
    counted = {"anchors": 2, "erased": 1, "passages": 1, "records": 19, "withheld": 1}
    yield Tampered("counts", "coverage", "TAMPERED", of_two_months().zipped(counts=counted))
    yield Tampered(
        "a period without its records",
        "coverage",
        "TAMPERED",
        of_two_months().zipped(to="2026-11-18T14:00:05.000000Z"),
    )
    yield Tampered("a client", "coverage", "TAMPERED", of_two_months().zipped(chosen={"client": "other"}))
    yield Tampered("redacted, but with words", "row", "TAMPERED", of_two_months().zipped(redacted=True))


def _signed_anew(file: str, change: Callable[[bytes], bytes]) -> bytes:
    package = of_two_months()
    changed = change(package.files[file])
    assert changed != package.files[file], file
    package.files[file] = changed
    return package.zipped()


def _lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    return lambda content: b"".join(change(content.splitlines(keepends=True)))


def _line(at: int, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[bytes], bytes]:
    def changed(lines: list[bytes]) -> list[bytes]:
        return [*lines[:at], canonical_json(change(json.loads(lines[at]))) + b"\n", *lines[at + 1 :]]

    return _lines(changed)


def _in_row(**given: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda body: body | {"row": body["row"] | given}


def _signature_of_another(body: dict[str, Any]) -> dict[str, Any]:
    other = json.loads(of_two_months().files[RECORDS].splitlines()[0])
    return body | {"row": body["row"] | {"signature": other["row"]["signature"]}}


def _emptied(body: dict[str, Any]) -> dict[str, Any]:
    redacted = of_two_months(is_redacted=True).files[RECORDS].splitlines()[2]
    emptied: dict[str, Any] = json.loads(redacted)
    return emptied


def _text_of(file: str) -> str:
    return of_two_months().files[file].decode()


def _with_checkpoint(key: SigningKey, month: date = NOVEMBER, **changed: Any) -> bytes:
    """The month's checkpoint signed anew, in its file and in all bundles."""
    package, name = of_two_months(), f"{month:%Y-%m}"
    note = package.files[f"checkpoints/{name}.note"]
    other = _resigned(note, key, **changed)
    package.files[f"checkpoints/{name}.note"] = other
    records = package.files[f"records/{name}.jsonl"].splitlines()
    bodies = [json.loads(line) | {"checkpoint": other.decode()} for line in records]
    package.files[f"records/{name}.jsonl"] = b"".join(canonical_json(body) + b"\n" for body in bodies)
    return package.zipped()


def _resigned(note: bytes, key: SigningKey, **changed: Any) -> bytes:
    checkpoint: Checkpoint = replace(open_note(note.decode(), [KEY.public]), **changed)
    signed_from = min(checkpoint.signed_from or 0, checkpoint.size)
    return sign_note(replace(checkpoint, signed_from=signed_from), key).encode()


def _forged_erasure(line: bytes) -> bytes:
    body = json.loads(line) | {"event": json.loads(line)["log_id"]}
    return canonical_json(body) + b"\n"
