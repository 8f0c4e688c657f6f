"""API keys, as far as they are text."""

import re
import string
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.keys import digest, key_id_of, mint
from tests.build import steady

KEY_ID, KEY = mint()


def checksummed(body: str) -> str:
    """What a stranger who read the source can make."""
    return f"{body}{zlib.crc32(body.encode()):08x}"


def test_minted_key_is_well_formed() -> None:
    key_id, key = mint()
    assert re.fullmatch(r"aff_[0-9a-f]{10}_[0-9a-f]{72}", key)
    assert key.split("_")[1] == key_id == key_id_of(key)


def test_no_two_keys_are_alike() -> None:
    minted = [mint() for _ in range(100)]
    assert len({key_id for key_id, _ in minted}) == len({key for _, key in minted}) == 100


def test_every_wrong_character_is_caught() -> None:
    for position, right in enumerate(KEY):
        for wrong in set(string.printable + "é\u0430\0") - {right}:
            assert key_id_of(KEY[:position] + wrong + KEY[position + 1 :]) is None, (position, wrong)


def test_swapped_missing_and_doubled_characters_are_caught() -> None:
    for n in range(len(KEY)):
        swapped = KEY[:n] + KEY[n : n + 2][::-1] + KEY[n + 2 :]
        for typo in (swapped, KEY[:n] + KEY[n + 1 :], KEY[:n] + KEY[n] + KEY[n:]):
            assert typo == KEY or key_id_of(typo) is None


@pytest.mark.parametrize(
    "key",
    ["", " ", "_", "__", "aff", "aff_", "aff__", "aff_1_2", KEY.upper(), f" {KEY}", f"{KEY}\n",
     f"Bearer {KEY}",
     KEY[4:], "ключ", "aff_ключ_ключ", "🔑" * 90, KEY + "\0", "\ud800", "sk-ant-api03-" + "x" * 80],
    ids=lambda key: f"{len(key)} characters",  # the key itself is another one in every process
)  # fmt: skip
def test_foreign_string_is_no_key(key: str) -> None:
    assert key_id_of(key) is None


@steady
@given(st.text(max_size=120))
def test_any_text_is_no_key(text: str) -> None:
    assert key_id_of(text) is None


@pytest.mark.parametrize(
    "body", ["aff_ключ_ключ", "sk_0123456789_" + "0" * 64, "aff_0123456789", "aff_1_2_3"]
)
def test_good_checksum_alone_makes_no_key(body: str) -> None:
    assert key_id_of(checksummed(body)) is None


@pytest.mark.parametrize(
    ("key_id", "secret"),
    [("\0" * 10, "0" * 64), ("not-hex-id", "0" * 64), ("ABCDEF0123", "0" * 64), ("01234", "0" * 64),
     ("0123456789", ""), ("0123456789", "g" * 64)],
    ids=["NUL", "not hexadecimal", "capital letters", "short id", "no secret", "secret not hexadecimal"],
)  # fmt: skip
def test_key_that_was_never_minted_does_not_reach_the_database(key_id: str, secret: str) -> None:
    """A NUL, of all things, would be PostgreSQL's error and so a 503 in place of a 401."""
    assert key_id_of(checksummed(f"aff_{key_id}_{secret}")) is None


def test_digest_is_of_the_whole_key() -> None:
    assert digest("aff").hex() == "543b4bb6a59be2120f339bc9963f7a5917a919a90c1d47a5a72fdaa88cb71bb2"
    assert len({digest(KEY), digest(KEY[:-1]), digest(KEY.upper()), digest("")}) == 4


@pytest.mark.parametrize("key", ["", "ключ", "🔑", "a" * 100_000])
def test_digest_of_any_string_has_32_bytes(key: str) -> None:
    assert len(digest(key)) == 32
