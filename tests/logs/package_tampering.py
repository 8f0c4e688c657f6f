"""Tamperings with an evidence package: what an attacker does, whose key signs the manifest again, and where it must be found.

An insider has the log's own key and makes the spreadsheet fit again; a stranger has another key; nobody signs nothing.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

from audit.package import manifest as names
from audit.package.container import local_header, read_directory
from audit.proof.bundle import Bundle, encode
from audit.proof.checkpoint import Link
from audit.proof.keys import SigningKey
from audit.proof.merkle import StoredTree, root
from audit.proof.record import Row, commitments, leaf_hash
from tests.logs import packages
from tests.logs.packages import ANCHORED, NOVEMBER, OCTOBER, SIZES, Files, checkpoint, line
from tests.proofs import KEY, STRANGER, signature_of

Signer = Literal["nobody", "stranger", "insider"]
Change = Callable[[Files], None]
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tampering:
    name: str
    rung: str
    verdict: str
    content: bytes


def tamperings() -> list[Tampering]:
    return [*_of_the_zip(), *_of_files()]


def _of_files() -> list[Tampering]:
    found = []
    for signer, rung, verdict, name, change in _CHANGES:
        files = packages.made()
        change(files)
        found.append(Tampering(name, rung, verdict, packages.zipped(_signed(files, signer))))
    return found


def _signed(files: Files, signer: Signer) -> Files:
    """A change may have signed the manifest itself, to say something else in it."""
    if signer == "nobody" or files.pop("signed", b""):
        return files
    return packages.signed(files, STRANGER if signer == "stranger" else KEY)


# Tools of the attackers


def _record(month: date, index: int, change: Callable[[Body], None], *, is_derived: bool = True) -> Change:
    """Alter the body of one bundle, and write it as it must be written."""

    def altered(files: Files) -> None:
        name = names.records_name(month)
        lines = files[name].splitlines(keepends=True)
        body = json.loads(lines[index])
        change(body)
        lines[index] = line(body)
        files[name] = b"".join(lines)
        if is_derived:
            _derive(files)

    return altered


def _lines(name: str, change: Callable[[list[bytes]], None], *, is_derived: bool = False) -> Change:
    def altered(files: Files) -> None:
        lines = files[name].splitlines(keepends=True)
        change(lines)
        files[name] = b"".join(lines)
        if is_derived:
            _derive(files)

    return altered


def _json(name: str, change: Callable[[Body], None]) -> Change:
    def altered(files: Files) -> None:
        body = json.loads(files[name])
        change(body)
        files[name] = line(body)

    return altered


def _replaced(name: str, old: bytes, new: bytes) -> Change:
    def altered(files: Files) -> None:
        assert old in files[name]
        files[name] = files[name].replace(old, new, 1)

    return altered


def _manifest(key: SigningKey = KEY, **given: Any) -> Change:
    """Signed again, with other members."""

    def altered(files: Files) -> None:
        files |= packages.signed(files, key, **given)
        files["signed"] = b"yes"

    return altered


def _all(*changes: Change) -> Change:
    def altered(files: Files) -> None:
        for change in changes:
            change(files)

    return altered


def _derive(files: Files) -> None:
    try:
        files[names.SPREADSHEET] = packages.derived_spreadsheet(files)
    except ValueError:
        return  # a line that is no bundle: the attacker leaves the spreadsheet as it was


def _sealed_again(
    month: date, altered: Mapping[int, Row], size: int | None = None, key: SigningKey = KEY
) -> Change:
    """With the signing key: other rows, a new tree of them, a new checkpoint, new proofs."""

    def sealed(files: Files) -> None:
        size_now = size or SIZES[month]
        rows = [altered.get(index, packages.rows()[month, index]) for index in range(size_now)]
        leaves = [leaf_hash(row) for row in rows]
        tree, note = StoredTree(b"".join(leaves)), checkpoint(month, size_now, key, root=root(leaves))
        bundles = (
            Bundle(
                row, index, tree.inclusion_proof(index), note, packages.bundle_of(month, index).commitments
            )
            for index, row in enumerate(rows)
        )
        files[names.records_name(month)] = b"".join(map(encode, bundles))
        files[names.checkpoint_name(month)] = note.encode()
        proofs = {
            str(old): [part.hex() for part in tree.consistency_proof(old)]
            for old in ANCHORED[month]
            if old < size_now
        }
        files[names.consistency_name(month)] = line(
            {"month": f"{month:%Y-%m}", "size": size_now, "proofs": proofs}
        )
        _derive(files)

    return sealed


def _noted(month: date, note: str) -> Change:
    """Another checkpoint, in its file and in every bundle."""

    def altered(files: Files) -> None:
        name = names.records_name(month)
        files[names.checkpoint_name(month)] = note.encode()
        bodies = (json.loads(each) | {"checkpoint": note} for each in files[name].splitlines())
        files[name] = b"".join(map(line, bodies))

    return altered


def _left_out(month: date, *indexes: int) -> Change:
    """An insider who leaves records out, and makes all counts fit."""

    def altered(files: Files) -> None:
        name = names.records_name(month)
        lines = files[name].splitlines(keepends=True)
        files[name] = b"".join(each for index, each in enumerate(lines) if index not in indexes)
        _derive(files)
        said = packages.coverage()
        said["months"][month == NOVEMBER]["records"] -= len(indexes)
        files[names.COVERAGE] = line(said)
        counts = dict(names.open_manifest(files[names.MANIFEST]).counts)
        _manifest(counts=counts | {"records": counts["records"] - len(indexes)})(files)

    return altered


def _row(**values: Any) -> Callable[[Body], None]:
    return lambda body: body["row"].update(values)


def _signed_row(key: SigningKey, **values: Any) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        body["row"] |= values
        body["row"]["signature"] = signature_of(body["row"], key)

    return change


def _withheld(body: Body) -> None:
    """As if the record had been erased."""
    committed = commitments(body["row"])
    body["commitments"] = committed
    for name in (*committed, "salt"):
        del body["row"][name]


def _rewritten(index: int) -> Row:
    row = packages.rows()[OCTOBER, index] | {"answer_text": "It says the opposite."}
    return row | {"signature": signature_of(row, KEY)}


def _first_hash(body: Body) -> None:
    body["proof"][0] = "00" * 32


def _index(step: int) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        body["leaf_index"] += step

    return change


def _follows(change: Callable[[Body], None]) -> Callable[[list[bytes]], None]:
    """A passage that is altered, and gets the id that follows from it."""

    def altered(lines: list[bytes]) -> None:
        from audit.proof import passage_id

        body = json.loads(lines[0])
        change(body)
        lines[0] = line(body | passage_id.derived(body))
        lines.sort(key=lambda each: json.loads(each)["chunk_id"])

    return altered


def _passage(**values: Any) -> Callable[[list[bytes]], None]:
    def altered(lines: list[bytes]) -> None:
        lines[0] = line(json.loads(lines[0]) | values)

    return altered


def _swap(lines: list[bytes]) -> None:
    lines[1], lines[2] = lines[2], lines[1]


def _twice(lines: list[bytes]) -> None:
    lines.insert(3, lines[2])


def _spaced(lines: list[bytes]) -> None:
    lines[1] = lines[1].replace(b'"format":', b'"format": ', 1)


def _duplicate_member(lines: list[bytes]) -> None:
    lines[1] = lines[1].replace(b'{"checkpoint":', b'{"checkpoint":"x","checkpoint":', 1)


def _moved(files: Files) -> None:
    """A record of October among those of November."""
    first, second = names.records_name(OCTOBER), names.records_name(NOVEMBER)
    moved, *rest = files[first].splitlines(keepends=True)
    files[first], files[second] = b"".join(rest), moved + files[second]
    _derive(files)


def _swapped_notes(files: Files) -> None:
    first, second = names.checkpoint_name(OCTOBER), names.checkpoint_name(NOVEMBER)
    files[first], files[second] = files[second], files[first]


def _dropped(name: str) -> Change:
    def altered(files: Files) -> None:
        del files[name]

    return altered


def _added(name: str, content: bytes = b"x") -> Change:
    def altered(files: Files) -> None:
        files[name] = content

    return altered


def _renamed(old: str, new: str) -> Change:
    def altered(files: Files) -> None:
        files[new] = files.pop(old)

    return altered


def _first_signature(body: Body) -> None:
    body["signature"] = packages.erasure(packages.rows()[packages.ERASED], STRANGER)["signature"]


def _another_log(files: Files) -> None:
    """All of it genuine, but of somebody else's log: every signature is a stranger's."""
    for month in SIZES:
        _noted(month, checkpoint(month, SIZES[month], STRANGER))(files)
    files[names.KEYS] = f"{STRANGER.public}\n".encode()


_OCTOBERS, _NOVEMBERS = names.records_name(OCTOBER), names.records_name(NOVEMBER)
_HEAD, _LAST_HEAD = names.checkpoint_name(OCTOBER), names.checkpoint_name(NOVEMBER)
_ANCHOR = names.anchor_name(NOVEMBER, 4)
_ELSEWHERE = Link(OCTOBER, SIZES[OCTOBER], b"\x01" * 32)
_LARGER = Link(OCTOBER, SIZES[OCTOBER] + 3, b"\x01" * 32)
_ALTERED = _row(answer_text="It says the opposite.")

_CHANGES: list[tuple[Signer, str, str, str, Change]] = [
    ("nobody", "package", "TAMPERED", "a word of the README", _replaced(names.README, b"Evidence", b"Evidense")),
    ("nobody", "package", "TAMPERED", "another program", _replaced(names.AUDITOR, b"audit/auditor.py", b"audit/auditoR.py")),
    ("nobody", "package", "TAMPERED", "other keys in keys.pub", _added(names.KEYS, f"{STRANGER.public}\n".encode())),
    ("nobody", "package", "TAMPERED", "a file that nobody listed", _added("stamps/extra.tsr")),
    ("nobody", "package", "TAMPERED", "a count in the manifest", _replaced(names.MANIFEST, b'"erased":1', b'"erased":0')),
    ("nobody", "package", "TAMPERED", "a space in the manifest", _replaced(names.MANIFEST, b'"format":', b'"format": ')),
    ("nobody", "package", "MISSING", "a listed file is gone", _dropped(names.QUERIES)),
    ("nobody", "row", "TAMPERED", "an answer altered, and nothing else", _record(OCTOBER, 1, _ALTERED, is_derived=False)),
    ("nobody", "words", "TAMPERED", "a cell altered, and nothing else", _replaced(names.SPREADSHEET, b"It says so", b"It says no")),
    ("stranger", "package", "TAMPERED", "nothing altered, signed by a stranger", lambda _: None),
    ("stranger", "row", "TAMPERED", "an answer altered, signed by a stranger", _record(OCTOBER, 1, _ALTERED)),
    ("stranger", "checkpoint", "TAMPERED", "the heads of a stranger's log", _another_log),
    ("insider", "package", "TAMPERED", "a file of another name", _added("notes.txt")),
    ("insider", "package", "MISSING", "no coverage at all", _dropped(names.COVERAGE)),
    ("insider", "package", "MISSING", "no records of a month", _dropped(_OCTOBERS)),
    ("insider", "words", "TAMPERED", "a cell of the spreadsheet", _replaced(names.SPREADSHEET, b"It says so", b"It says no")),
    ("insider", "words", "TAMPERED", "a formula in the spreadsheet", _replaced(names.SPREADSHEET, b"'=1+1", b"=1+1")),
    ("insider", "words", "TAMPERED", "a line of the spreadsheet is gone", _lines(names.SPREADSHEET, lambda lines: lines.__delitem__(3))),
    ("insider", "words", "TAMPERED", "one more line in the spreadsheet", _lines(names.SPREADSHEET, lambda lines: lines.append(b"2026-11,99\r\n"))),
    ("insider", "words", "TAMPERED", "other names of columns", _replaced(names.SPREADSHEET, b"client_id,end_user", b"end_user,client_id")),
    ("insider", "words", "TAMPERED", "a passage's text", _lines(names.PASSAGES, _passage(text="It never yields."))),
    ("insider", "words", "TAMPERED", "a passage's page", _lines(names.PASSAGES, _passage(start_page="99"))),
    ("insider", "words", "TAMPERED", "a passage's address", _lines(names.PASSAGES, _passage(url="/elsewhere"))),
    ("insider", "words", "MISSING", "a passage is gone", _lines(names.PASSAGES, lambda lines: lines.__delitem__(1))),
    ("insider", "words", "MISSING", "a passage altered, with the id that follows", _lines(names.PASSAGES, _follows(lambda body: body.update(text=body["text"].replace("not", "very"))))),
    ("insider", "words", "TAMPERED", "two passages swapped", _lines(names.PASSAGES, _swap)),
    ("insider", "row", "TAMPERED", "an answer", _record(OCTOBER, 1, _ALTERED)),
    ("insider", "row", "TAMPERED", "a question", _record(NOVEMBER, 2, _row(user_query_text="What else?"))),
    ("insider", "row", "TAMPERED", "an outcome", _record(NOVEMBER, 2, _row(outcome="refused"))),
    ("insider", "row", "TAMPERED", "a column that was empty", _record(NOVEMBER, 2, _row(reason="none"))),
    ("insider", "row", "TAMPERED", "a score", _record(NOVEMBER, 2, _row(confidence_score=0.99))),
    ("insider", "row", "TAMPERED", "a record without its signature", _record(OCTOBER, 1, lambda body: body["row"].pop("signature"))),
    ("insider", "row", "TAMPERED", "a record with a stranger's signature", _record(OCTOBER, 1, _signed_row(STRANGER))),
    ("insider", "row", "TAMPERED", "another salt", _record(OCTOBER, 1, _row(salt="\\x" + "00" * 32))),
    ("insider", "row", "TAMPERED", "a record hidden as if it were erased", _record(OCTOBER, 1, _withheld)),
    ("insider", "row", "TAMPERED", "an erasure that a stranger signed", _json(names.ERASURES, _first_signature)),
    ("insider", "row", "TAMPERED", "an erasure without its signed line", _lines(names.ERASURES, lambda lines: lines.clear())),
    ("insider", "row", "TAMPERED", "a space in a record", _lines(_OCTOBERS, _spaced)),
    ("insider", "row", "TAMPERED", "a member twice in a record", _lines(_OCTOBERS, _duplicate_member)),
    ("insider", "row", "TAMPERED", "a member more in a record", _record(OCTOBER, 1, lambda body: body.update(note="x"))),
    ("insider", "leaf", "TAMPERED", "an answer, and the row signed again with the log's key", _record(OCTOBER, 1, _signed_row(KEY, answer_text="No."))),
    ("insider", "leaf", "TAMPERED", "another place in the tree", _record(NOVEMBER, 12, _index(1))),
    ("insider", "leaf", "TAMPERED", "a hash of a proof", _record(OCTOBER, 1, _first_hash)),
    ("insider", "leaf", "TAMPERED", "a hash more in a proof", _record(OCTOBER, 1, lambda body: body["proof"].append("00" * 32))),
    ("insider", "leaf", "TAMPERED", "a record twice", _lines(_NOVEMBERS, _twice, is_derived=True)),
    ("insider", "leaf", "TAMPERED", "two records swapped", _lines(_NOVEMBERS, _swap, is_derived=True)),
    ("insider", "month", "TAMPERED", "a record in the file of another month", _moved),
    ("insider", "month", "TAMPERED", "a record with an older checkpoint", _record(NOVEMBER, 2, lambda body: body.update(checkpoint=checkpoint(NOVEMBER, 11)))),
    ("insider", "month", "TAMPERED", "a month on top of another tree", _noted(NOVEMBER, checkpoint(NOVEMBER, 13, previous=_ELSEWHERE))),
    ("insider", "month", "MISSING", "a month on top of a larger tree", _noted(NOVEMBER, checkpoint(NOVEMBER, 13, previous=_LARGER))),
    ("insider", "checkpoint", "TAMPERED", "a checkpoint of a stranger", _noted(OCTOBER, checkpoint(OCTOBER, 5, STRANGER))),
    ("insider", "checkpoint", "TAMPERED", "a checkpoint of another log", _noted(OCTOBER, checkpoint(OCTOBER, 5, origin="affidavit/other"))),
    ("insider", "checkpoint", "TAMPERED", "a checkpoint's time", _noted(OCTOBER, checkpoint(OCTOBER, 5).replace("time 2026-10-10T13", "time 2026-10-10T14"))),
    ("insider", "checkpoint", "TAMPERED", "the checkpoints of two months swapped", _swapped_notes),
    ("insider", "checkpoint", "TAMPERED", "a checkpoint that is no note", _added(_HEAD, b"It is fine.\n")),
    ("insider", "vault", "TAMPERED", "history rewritten with the log's key", _sealed_again(OCTOBER, {1: _rewritten(1)})),
    ("insider", "vault", "MISSING", "the log set back behind its anchors", _all(_sealed_again(NOVEMBER, {}, 10), _manifest())),
    ("insider", "vault", "TAMPERED", "a consistency proof", _json(names.consistency_name(NOVEMBER), lambda body: body["proofs"]["4"].reverse())),
    ("insider", "vault", "TAMPERED", "no consistency proofs", _json(names.consistency_name(NOVEMBER), lambda body: body["proofs"].clear())),
    ("insider", "vault", "TAMPERED", "an anchored head of a stranger", _added(_ANCHOR, checkpoint(NOVEMBER, 4, STRANGER).encode())),
    ("insider", "vault", "TAMPERED", "an anchored head under another size", _renamed(_ANCHOR, names.anchor_name(NOVEMBER, 5))),
    ("insider", "coverage", "MISSING", "a record left out, and all counts made to fit", _left_out(NOVEMBER, 3)),
    ("insider", "coverage", "MISSING", "the last records left out, and all counts made to fit", _left_out(NOVEMBER, 11, 12)),
    ("insider", "coverage", "TAMPERED", "a count of the coverage", _json(names.COVERAGE, lambda body: body["months"][0].update(records=6))),
    ("insider", "coverage", "TAMPERED", "a month less in the coverage", _json(names.COVERAGE, lambda body: body["months"].pop())),
    ("insider", "coverage", "TAMPERED", "a choice that hides gaps", _json(names.COVERAGE, lambda body: body.update(is_whole=False))),
    ("insider", "coverage", "TAMPERED", "a record beyond the period", _manifest(until=datetime(2026, 11, 10, 12, 5, tzinfo=UTC))),
    ("insider", "coverage", "TAMPERED", "records of another client", _manifest(chosen={"client": "somebody"})),
    ("insider", "coverage", "TAMPERED", "a count of the manifest", _manifest(counts={"records": 18, "withheld": 1, "erased": 1, "passages": 3, "anchors": 5})),
]  # fmt: skip


# The ZIP itself, around files that nobody touched


def _of_the_zip() -> list[Tampering]:
    whole = packages.zipped(packages.made())
    end = whole.rindex(b"PK\x05\x06")
    (offset,) = struct.unpack("<I", whole[end + 16 : end + 20])
    first = read_directory(_open(whole))[0]
    after = len(local_header(first)) + first.packed
    files = packages.made()
    order = sorted(files, key=names.order_of)
    changed = {
        "a byte after the end": whole + b"\x00",
        "a byte before the beginning": b"\x00" + whole,
        "a comment": whole[:-2] + b"\x04\x00hide",
        "a gap between two files": _shifted(whole, after, b"\x00" * 16, end, offset),
        "a gap before the directory": _shifted(whole, offset, b"\x00" * 16, end, offset),
        "the name in a file's header": whole.replace(b"README.md", b"README.MD", 1),
        "an absolute name": whole.replace(b"queries.json", b"/ueries.json"),
        "a name that climbs": whole.replace(b"records/2026-10.jsonl", b"../ords/2026-10.jsonl"),
        "two files of one name": whole.replace(b"records/2026-11.jsonl", b"records/2026-10.jsonl"),
        "a checksum": _poked(whole, 14, b"\x00\x00\x00\x00", offset, 16),
        "a size that is too small": _poked(whole, 22, struct.pack("<I", first.size - 1), offset, 24),
        "a size that is too large": _poked(whole, 22, struct.pack("<I", first.size + 1), offset, 24),
        "a flag": _poked(whole, 6, b"\x08\x00", offset, 8),
        "a date": _poked(whole, 12, b"\x22\x00", offset, 14),
        "a compression that no package has": _poked(whole, 8, b"\x0c\x00", offset, 10),
        "a bit of the packed data": _flipped(whole, len(local_header(first)) + 40),
        "the end is cut off": whole[:-22],
        "the directory is cut off": whole[:offset],
        "the order of the files": packages.zipped(files, [*order[1:-1], order[0], order[-1]]),
        "the manifest is not the last file": packages.zipped(files, [order[-1], *order[:-1]]),
        "not a ZIP behind its beginning": b"PK\x03\x04" + b"\x00" * 100,
    }  # fmt: skip
    return [Tampering(f"ZIP: {name}", "package", "TAMPERED", content) for name, content in changed.items()]


def _open(content: bytes) -> Any:
    import io

    return io.BytesIO(content)


def _poked(whole: bytes, local: int, value: bytes, offset: int, central: int) -> bytes:
    """Both headers of the first file."""
    changed = bytearray(whole)
    changed[local : local + len(value)] = value
    changed[offset + central : offset + central + len(value)] = value
    return bytes(changed)


def _flipped(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


def _shifted(whole: bytes, at: int, gap: bytes, end: int, offset: int) -> bytes:
    """Bytes that belong to no file, and all offsets made to fit."""
    changed = bytearray(whole)
    changed[end + 16 : end + 20] = struct.pack("<I", offset + len(gap))
    place = offset
    while changed[place : place + 4] == b"PK\x01\x02":
        (of,) = struct.unpack("<I", changed[place + 42 : place + 46])
        if of >= at:
            changed[place + 42 : place + 46] = struct.pack("<I", of + len(gap))
        place += 46 + struct.unpack("<H", changed[place + 28 : place + 30])[0]
    changed[at:at] = gap
    return bytes(changed)
