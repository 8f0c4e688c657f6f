"""What waits for the database: on disk before it is acknowledged, whole or not at all, and never given up."""

import asyncio
import errno
import os
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from audit.errors import TransientWriteError
from audit.ledger import spool as spools
from audit.ledger.entry import Entry, check, compacted
from audit.ledger.spool import (
    ASIDE_FILE,
    LINE_BYTES_MAX,
    Spool,
    abandoned_files,
    batches,
    is_alive,
    line_of,
    lost_files,
)
from audit.proof.record import Trail, hashed, row_of
from engine.wiring import now
from tests.logs.writers import KEY

MANY = 1_000_000


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    opened = Spool.open(tmp_path, 7, MANY)
    yield opened
    opened.close()


def step(text: str = "What is it? 机器人\n🤖") -> Entry:
    name = uuid4()
    trail = Trail(log_id=name, query_id=name, timestamp=now(), endpoint="test", user_query_text=text)
    return Entry.closed(name, hashed(row_of(trail), bytes(32)))


def steps(spool: Spool) -> list[str]:
    return [entry.log_id for entry in spool.read().entries]


def left(folder: Path) -> list[Entry]:
    return [entry for path in abandoned_files(folder) for piece in batches(path) for entry in piece.entries]


async def test_what_was_appended_is_read_in_order(spool: Spool) -> None:
    written = [step() for _ in range(5)]
    await spool.append(written[:2])
    await spool.append(written[2:])
    assert [entry.text for entry in spool.read().entries] == [entry.text for entry in written]
    assert all(entry.is_spooled for entry in spool.read().entries)


async def test_it_begins_anew_when_the_database_has_all(spool: Spool) -> None:
    await spool.append([step()])
    assert not spool.is_empty
    spool.mark_drained(spool.read())
    assert spool.is_empty
    assert spool.path.stat().st_size == 0
    last = step()
    await spool.append([last])
    assert steps(spool) == [last.log_id]


async def test_what_comes_while_it_is_drained_is_not_lost(spool: Spool) -> None:
    first, second = step(), step()
    await spool.append([first])
    piece = spool.read()
    await spool.append([second])
    spool.mark_drained(piece)
    assert not spool.is_empty
    assert steps(spool) == [second.log_id]


# Seen red with `drained` emptying the file without looking at `in_flight`.
async def test_what_is_being_written_while_the_rest_is_drained_is_not_lost(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    write = os.pwrite

    def slowly(descriptor: int, content: bytes, place: int) -> int:
        written = write(descriptor, content, place)
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        return written

    await spool.append([step()])
    monkeypatch.setattr("audit.ledger.spool.os.pwrite", slowly)
    last = step()
    async with asyncio.TaskGroup() as group:
        group.create_task(spool.append([last]))
        await begun.wait()
        spool.mark_drained(spool.read())
        go_on.set()
    assert steps(spool) == [last.log_id]


# Seen red with a file object over the spool's own descriptor: an append moved its place, and the rest was passed over.
async def test_what_is_appended_while_the_rest_is_read_does_not_hide_anything(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, late = [step("x" * 3000) for _ in range(100)], step()
    await spool.append(written)
    of_line = Entry.of_line
    appended: list[int] = []

    def meanwhile(line: str) -> Entry:
        if not appended:
            appended.append(os.pwrite(spool.descriptor, line_of(late), spool.durable_bytes))
        return of_line(line)

    monkeypatch.setattr("audit.ledger.spool.Entry.of_line", meanwhile)
    piece = spool.read()
    assert [entry.log_id for entry in piece.entries] == [entry.log_id for entry in written]
    assert piece.damaged == []


async def test_a_file_that_was_cut_is_told_of(spool: Spool) -> None:
    kept = step()
    await spool.append([kept])
    await spool.append([step()])
    os.truncate(spool.path, len(line_of(kept)))
    piece = spool.read()
    assert [entry.log_id for entry in piece.entries] == [kept.log_id]
    assert piece.bytes_missing > 0
    spool.mark_drained(piece)
    assert spool.is_empty


@pytest.mark.parametrize("owner", [0, 2**63 - 1])
def test_its_file_is_for_nobody_else_to_read(tmp_path: Path, owner: int) -> None:
    spool = Spool.open(tmp_path / "spool", owner, MANY)
    assert spool.path.stat().st_mode & 0o777 == 0o600
    assert spool.folder.stat().st_mode & 0o777 == 0o700
    spool.close()


def test_an_empty_one_leaves_no_file(tmp_path: Path) -> None:
    Spool.open(tmp_path, 1, MANY).close()
    assert list(tmp_path.glob("*.spool")) == list(tmp_path.glob("*.draft")) == []


async def test_a_full_one_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    kept = step()
    spool = Spool.open(tmp_path, 1, len(line_of(kept)) + 10)
    await spool.append([kept])
    with pytest.raises(TransientWriteError):
        await spool.append([step()])
    assert steps(spool) == [kept.log_id]
    spool.mark_drained(spool.read())
    await spool.append([kept])
    spool.close()


# Seen red without the `ftruncate` after a failed write: the next line was glued to half of another.
async def test_a_full_disk_leaves_no_half_line_behind(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = step(), step()
    await spool.append([before])
    write, pieces_written = os.pwrite, [100]

    def full(descriptor: int, content: bytes, place: int) -> int:
        if pieces_written:
            return write(descriptor, content[: pieces_written.pop()], place)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("audit.ledger.spool.os.pwrite", full)
        with pytest.raises(TransientWriteError):
            await spool.append([step()])
    await spool.append([after])
    piece = spool.read()
    assert [entry.log_id for entry in piece.entries] == [before.log_id, after.log_id]
    assert piece.damaged == []


# Seen red with `fsync` left out.
async def test_nothing_is_acknowledged_before_it_is_on_disk(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("audit.ledger.spool.os.fsync", lambda _: synced.append(spool.path.stat().st_size))
    entry = step()
    await spool.append([entry])
    assert synced == [len(line_of(entry))]


async def test_a_torn_last_line_is_recognised_wherever_it_is_torn(tmp_path: Path) -> None:
    """The machine died while it was written, so nobody was told that it was there."""
    first, torn = step(), step()
    whole = line_of(first) + line_of(torn)
    path = tmp_path / f"{9:016x}.spool"
    for end in range(len(line_of(first)), len(whole)):
        path.write_bytes(whole[:end])
        (piece,) = batches(path)
        assert [entry.log_id for entry in piece.entries] == [first.log_id]
        assert piece.damaged == []


# Seen red without the file with the acknowledged length: the cut line was taken for a torn one, and whole lines for none.
@pytest.mark.parametrize("cut", [1, 300, MANY])
async def test_acknowledged_bytes_that_are_cut_off_are_told_from_a_torn_line(
    tmp_path: Path, cut: int
) -> None:
    spool, written = Spool.open(tmp_path, 9, MANY), [step() for _ in range(3)]
    for entry in written:
        await spool.append([entry])
    spool.close()
    size = spool.path.stat().st_size
    os.truncate(spool.path, max(0, size - cut))
    pieces = [piece for path in abandoned_files(tmp_path) for piece in batches(path)]
    found = [entry.log_id for piece in pieces for entry in piece.entries]
    assert found == [entry.log_id for entry in written][: len(found)]
    assert sum(piece.bytes_missing for piece in pieces) == min(cut, size)
    assert len(found) < 3


async def test_a_line_that_was_never_acknowledged_is_not_missed(tmp_path: Path) -> None:
    spool, kept = Spool.open(tmp_path, 9, MANY), step()
    await spool.append([kept])
    os.pwrite(spool.descriptor, line_of(step())[:-20], spool.durable_bytes)  # the machine dies here
    spool.close()
    (piece,) = [piece for path in abandoned_files(tmp_path) for piece in batches(path)]
    assert [entry.log_id for entry in piece.entries] == [kept.log_id]
    assert (piece.damaged, piece.bytes_missing) == ([], 0)


async def test_a_file_that_is_gone_altogether_is_missed(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, 9, MANY)
    await spool.append([step()])
    size = spool.path.stat().st_size
    spool.path.unlink()
    assert list(lost_files(tmp_path)) == []  # its process lives, and has it open
    spool.close()
    assert [(path.name, size_bytes) for path, size_bytes in lost_files(tmp_path)] == [(spool.path.name, size)]


async def test_what_was_drained_is_not_missed(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, 9, MANY)
    await spool.append([step()])
    spool.mark_drained(spool.read())
    spool.close()
    assert list(lost_files(tmp_path)) == []
    assert list(abandoned_files(tmp_path)) == []
    spool = Spool.open(tmp_path, 9, MANY)
    await spool.append([step()])
    spool.close()
    for path in abandoned_files(tmp_path):
        spools.remove(path)
    assert [path.name for path in tmp_path.iterdir()] == ["identity"]


def sealed(text: bytes) -> bytes:
    """A line with the right digest, whatever it says."""
    return spools._digest(text) + b" " + text + b"\n"


def wrong_lines() -> dict[str, bytes]:
    good = step()
    _, name, text = good.line().split(" ", 2)
    changed = {
        "another answer": text.replace('"endpoint":"test"', '"endpoint":"tess"'),
        "a month that does not exist": re.sub(r'"timestamp":"\d{4}-\d\d', '"timestamp":"2026-13', text),
        "a year before the first": re.sub(r'"timestamp":"\d{4}', '"timestamp":"-044', text),
        "a wrong type": re.sub(r'"timestamp":"[^"]*"', '"timestamp":[7]', text),
        "a negative number": text.replace('"repeat_count":1', '"repeat_count":-1'),
        "no salt": re.sub(r'"salt":"[^"]*"', '"salt":null', text),
        "half an object": text[:-30],
        "a list": f"[{text}]",
        "a number": "7",
        "very deep": "[" * 100_000,
    }
    lines = {what: f"closed {name} {row}".encode() for what, row in changed.items()}
    return lines | {
        "another request": f"closed {uuid4()} {text}".encode(),
        "no request": f"closed x {text}".encode(),
        "another step": f"burnt {name} {text}".encode(),
        "not UTF-8": b"closed \xff\xfe",
        "no words": b"",
        "an open record without an owner": f'opened {name} {{"log_id":"{name}"}}'.encode(),
        "an endless owner": f'opened {name} {{"log_id":"{name}","trail":{{}},"opened_at":"2026-11-19","owner":1e999}}'.encode(),
        "a note without a record": f'noted {name} {{"log_id":"{name}","trail":[]}}'.encode(),
    }


# Seen red: the start ended in a ValueError, a UnicodeDecodeError, an AttributeError or an OverflowError, or the row was written.
@pytest.mark.parametrize("what", wrong_lines())
def test_a_line_with_a_right_digest_and_a_wrong_content_is_kept_for_a_person(
    tmp_path: Path, what: str
) -> None:
    before, after, wrong = step(), step(), sealed(wrong_lines()[what])
    path = tmp_path / f"{9:016x}.spool"
    path.write_bytes(line_of(before) + wrong + line_of(after))
    (piece,) = batches(path)
    assert [entry.log_id for entry in piece.entries] == [before.log_id, after.log_id]
    assert piece.damaged == [wrong]


# Seen red: the start ended in the ValueError of the signature.
@pytest.mark.parametrize("value", ["NaN", "9" * 400, '"\\ud800"'])
def test_an_old_step_that_cannot_be_signed_is_left_to_the_database(value: str) -> None:
    name = str(uuid4())
    text = f'{{"log_id":"{name}","trail":{{"schema_version":3,"top_k":{value}}},"opened_at":"2026-11-19","owner":1}}'
    wrong = Entry("opened", name, text, is_spooled=True)
    check(wrong)
    assert wrong.signed_if_old(KEY) is wrong


# Seen red: the line was read in one piece, and copied once for each block.
def test_a_huge_line_is_kept_in_pieces_and_not_in_memory(tmp_path: Path) -> None:
    before, after = step(), step()
    path, huge = tmp_path / f"{9:016x}.spool", b"x" * (20 * LINE_BYTES_MAX) + b"\n"
    path.write_bytes(line_of(before) + huge + line_of(after))
    tracemalloc.start()
    found, damaged = [], 0
    for piece in batches(path):
        found += [entry.log_id for entry in piece.entries]
        damaged += sum(map(len, piece.damaged))
        del piece
    assert tracemalloc.get_traced_memory()[1] < 10 * LINE_BYTES_MAX
    tracemalloc.stop()
    assert found == [before.log_id, after.log_id]
    assert damaged == len(huge)


@pytest.mark.parametrize("damage", [b"x", b"\n", b"\x00"], ids=ascii)
async def test_damage_in_the_middle_is_kept_for_a_person_and_the_rest_is_read(
    tmp_path: Path, damage: bytes
) -> None:
    lines = [line_of(step()) for _ in range(3)]
    spoiled = lines[1][:200] + damage + lines[1][201:]
    path = tmp_path / f"{9:016x}.spool"
    path.write_bytes(lines[0] + spoiled + lines[2])
    found = list(batches(path))
    assert [line_of(entry) for piece in found for entry in piece.entries] == [lines[0], lines[2]]
    assert b"".join(line for piece in found for line in piece.damaged) == spoiled


async def test_many_are_read_piece_by_piece(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, 3, 100 * MANY)
    written = [step("x" * 100) for _ in range(1000)]
    await spool.append(written)
    found: list[str] = []
    while not spool.is_empty:
        piece = spool.read()
        assert len(piece.entries) <= 256
        found += [entry.log_id for entry in piece.entries]
        spool.mark_drained(piece)
    assert found == [entry.log_id for entry in written]
    spool.close()


async def test_what_a_living_process_keeps_is_left_to_it(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, 5, MANY)
    await spool.append([step()])
    assert left(tmp_path) == []
    assert is_alive(tmp_path, 5)
    spool.close()
    assert len(left(tmp_path)) == 1
    assert not is_alive(tmp_path, 5)
    assert not is_alive(tmp_path, 6)


def test_a_folder_keeps_its_identity(tmp_path: Path) -> None:
    made = [Spool.open(tmp_path, owner, MANY) for owner in range(3)]
    assert len({spool.identity for spool in made}) == 1
    assert isinstance(made[0].identity, UUID)
    for spool in made:
        spool.close()
    assert not (tmp_path / ASIDE_FILE).exists()


def test_of_many_steps_only_the_last_words_are_left() -> None:
    def at(kind: str, name: str, text: str) -> Entry:
        return Entry.of_line(f"{kind} {name} {text}")

    told = [
        at("opened", "a", "1"), at("opened", "b", "2"), at("noted", "b", "3"), at("noted", "b", "4"),
        at("noted", "c", "5"), at("closed", "a", "6"), at("closed", "d", "7"),
    ]  # fmt: skip
    assert [entry.line() for entry in compacted(told)] == [
        "opened b 2", "noted b 4", "noted c 5", "closed a 6", "closed d 7",
    ]  # fmt: skip
