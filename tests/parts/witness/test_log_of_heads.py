"""The log of heads: it grows with each anchor, the vault leads, and a crash at any point is repaired by the next round."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from audit.errors import NoteError
from audit.heads.head import entry_leaf, log_keys, open_head
from audit.heads.vaulted import entries_key, list_heads, note_key, read_entries
from audit.proof.keys import SigningKey
from audit.proof.merkle import root
from engine.storage.database import Database
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, sealed_log


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        yield made


def stored(log: SealedLog, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(log.url) as connection:
        return connection.execute(statement.encode()).fetchall()


def entries(log: SealedLog) -> list[str]:
    return [
        str(entry) for (entry,) in stored(log, "SELECT entry FROM audit_head_entries ORDER BY entry_index")
    ]


def in_vault(log: SealedLog) -> list[str]:
    return [entry for _, entry in read_entries(log.vault, list_heads(log.vault).files)]


def newest(log: SealedLog) -> str:
    ((note,),) = stored(log, "SELECT note FROM audit_head_anchors ORDER BY tree_size DESC LIMIT 1")
    return str(note)


def assert_whole(log: SealedLog) -> None:
    """Database and vault have the same entries, and the newest published head is over all of them."""
    known = entries(log)
    assert known == in_vault(log) != []
    head, _ = open_head(newest(log), log.keys)
    assert (head.size, head.root) == (len(known), root([entry_leaf(entry.encode()) for entry in known]))
    assert log.vault.get(note_key(head.size)).decode() == newest(log)
    indexes = [index for (index,) in stored(log, "SELECT entry_index FROM audit_head_entries ORDER BY 1")]
    assert indexes == list(range(len(known)))


async def test_each_anchored_head_is_an_entry_in_the_order_of_the_anchors(log: SealedLog) -> None:
    assert_whole(log)
    months = [
        (month, size)
        for month, size in stored(log, "SELECT month, tree_size FROM audit_head_entries ORDER BY entry_index")
    ]
    assert months == [(JANUARY, 5), (FEBRUARY, 4), (FEBRUARY, 8), (FEBRUARY, 12)]
    for (month, size), entry in zip(months, entries(log), strict=True):
        assert log.vault.get(f"anchors/{month:%Y-%m}/{size:012d}.note").decode() == entry


async def test_the_head_of_heads_has_three_lines_under_the_name_of_the_log(log: SealedLog) -> None:
    ((origin,),) = stored(log, "SELECT origin FROM audit_origin")
    head, signed = open_head(newest(log), log.keys)
    assert head.origin == origin and signed.text.count("\n") == 3
    assert [line.name for line in signed.lines] == [origin]
    assert [str(key) for key in signed.signers(log_keys(str(origin), log.keys))]


async def test_the_entries_are_in_the_vault_as_lines_of_json(log: SealedLog) -> None:
    lines = log.vault.get(entries_key(0, 1)).decode().splitlines()
    assert [json.loads(line) for line in lines] == entries(log)[:1]


async def test_after_a_rotation_the_new_key_signs_under_the_same_name(log: SealedLog) -> None:
    new = SigningKey.rotate(log.folder / "signing.key")
    log.key = new
    log.write(FEBRUARY, 12)
    assert await log.seal() == {}
    head, _ = open_head(newest(log), [new.public])
    assert_whole(log)
    assert head.size == 5
    with pytest.raises(NoteError):
        open_head(newest(log), log.keys[:1])
