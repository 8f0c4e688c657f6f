"""A key counts for its time: revoked and delegated keys in files of keys, proofs and receipts, for both verifiers."""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from audit import auditor
from audit.errors import KeyFileError
from audit.proof.keys import (
    KeyRing,
    PublicKey,
    SigningKey,
    add_public_key,
    delegate,
    public_file,
    read_public_keys,
    revoke,
    time_text,
)
from tests import delegations, second_verifier
from tests.delegations import BEGIN, DAILY, ROW_AT, UNTIL, US, given
from tests.proofs import KEY, ROTATED, STRANGER

WRITTEN = json.loads(delegations.FILE.read_text("utf-8"))
MUTATIONS = 4_000
PROVEN = {"VALID", "ERASED", "UNSEALED"}


def ring(*lines: str) -> KeyRing:
    return KeyRing(PublicKey.of(line) for line in lines)


def test_the_written_examples_are_still_what_is_made() -> None:
    assert delegations.FILE.read_text("utf-8") == delegations.page()


# Seen red with `is_row_key` without the times, with `_is_given` that is always true, with `head_keys` of all keys, with
# parents that may be delegated, with `<=` at the end of a delegation, and with a revocation that begins a moment too late.
@pytest.mark.parametrize("example", WRITTEN, ids=[example["name"] for example in WRITTEN])
def test_both_verifiers_agree(example: dict[str, str]) -> None:
    lines, file = list(example["public_keys"]), example["file"].encode()
    assert auditor.check(file, ring(*lines)).verdict == example["verdict"]
    assert second_verifier.verdict(file, lines) == example["verdict"]


def test_no_mutation_of_a_line_lets_more_through() -> None:
    """Neither a changed line, nor one that is left out, nor one that is there twice."""
    chance = random.Random(20261119)
    refused = [example for example in WRITTEN if example["verdict"] == "TAMPERED"]
    accepted = []
    for _ in range(MUTATIONS):
        example = chance.choice(refused)
        lines = list(example["public_keys"])
        place = chance.randrange(len(lines))
        line = bytearray(lines[place].encode())
        line[chance.randrange(len(line))] ^= 1 << chance.randrange(7)
        lines[place] = line.decode("ascii", "replace")
        try:
            ours = auditor.check(example["file"].encode(), ring(*lines)).verdict
        except ValueError:
            ours = None
        verdicts = {ours, second_verifier.verdict(example["file"].encode(), lines)}
        # A pinned line with another time is another pinned line: whoever writes the auditor's file decides.
        if verdicts & PROVEN and " revoked " not in lines[place]:
            accepted.append((example["name"], lines[place]))
    assert accepted == []


def test_no_mutation_of_a_bundles_delegation_is_accepted() -> None:
    own, file = [str(KEY.public)], delegations.file(delegation=given())
    start = file.index(b'"delegation":"') + len(b'"delegation":"')
    for at in range(start, start + len(given().line)):
        changed = file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :]
        assert auditor.check(changed, ring(*own)).verdict not in PROVEN, at
        assert second_verifier.verdict(changed, own) not in PROVEN, at


@pytest.mark.parametrize(
    "line",
    [
        f"{KEY.public} ", f"{KEY.public} revoked", f"{KEY.public} revoked 2026-11-18", f"{KEY.public} revoked 2026-13-18T14:00:00.000000Z",
        f"{KEY.public} revoked 2026-11-18T24:00:00.000000Z", f"{KEY.public} Revoked 2026-11-18T14:00:00.000000Z",
        f"{KEY.public}  revoked 2026-11-18T14:00:00.000000Z", given().line + "=", given().line[:-1], given().line.replace("==", "="),
        given().line.replace(time_text(UNTIL), time_text(BEGIN)), f"{given().line} revoked {time_text(UNTIL)}",
    ],
)  # fmt: skip
def test_a_line_is_written_in_one_way(line: str) -> None:
    with pytest.raises(ValueError, match="Not a public key"):
        PublicKey.of(line)
    assert second_verifier.verdict(delegations.file(KEY), [line]) == "CANNOT_TELL"


def test_lines_are_read_as_they_are_written() -> None:
    for line in (str(KEY.public), given().line, delegations.revoked(KEY, ROW_AT)):
        assert PublicKey.of(line).line == line


# Seen red with `with_delegations` that takes any line.
def test_what_a_database_says_pins_and_revokes_nothing() -> None:
    pinned = ring(str(KEY.public))
    hostile = [str(STRANGER.public), delegations.revoked(KEY, BEGIN), "nonsense", given(parent=STRANGER).line]
    found = pinned.with_delegations(hostile)
    assert found.head_keys(ROW_AT) == pinned
    assert found.row_keys(DAILY.public.fingerprint, ROW_AT) == []
    assert found.row_keys(KEY.public.fingerprint, ROW_AT) == pinned
    revoked = ring(delegations.revoked(KEY, ROW_AT))
    assert revoked.with_delegations([given(KEY, STRANGER).line]).head_keys(ROW_AT - US) == revoked


def test_a_database_adds_the_delegations_of_a_pinned_key() -> None:
    found = ring(str(KEY.public)).with_delegations([given().line])
    assert found.row_keys(DAILY.public.fingerprint, ROW_AT) == [given()]
    assert found.with_delegations([given().line]) == found


def test_a_helper_gets_the_keys_that_it_needs_and_no_more() -> None:
    others = [delegate(SigningKey.in_memory().public, BEGIN, UNTIL, KEY).line for _ in range(20)]
    whole = ring(str(KEY.public), delegations.revoked(ROTATED, ROW_AT), given().line, *others)
    found = whole.narrowed([DAILY.public.fingerprint, b"none"])
    assert [key.line for key in found] == [
        str(KEY.public),
        delegations.revoked(ROTATED, ROW_AT),
        given().line,
    ]
    for key in (KEY, ROTATED, DAILY):
        for at in (BEGIN, ROW_AT, UNTIL):
            assert found.row_keys(key.public.fingerprint, at) == whole.row_keys(key.public.fingerprint, at)
    revoked = ring(str(KEY.public), given().line, delegations.revoked(DAILY, ROW_AT)).narrowed([])
    assert revoked.head_keys(BEGIN) == [KEY.public]


def test_a_key_is_revoked_in_its_file_and_keeps_its_place(tmp_path: Path) -> None:
    path, at = tmp_path / "signing.key", datetime(2026, 11, 20, 8, tzinfo=UTC)
    old, new = SigningKey.create(path), SigningKey.rotate(path)
    assert revoke(path, old.key_id, at).line == f"{old.public} revoked 2026-11-20T08:00:00.000000Z"
    known = read_public_keys(public_file(path))
    assert [key.line for key in known] == [delegations.revoked(old, at), str(new.public)]
    assert known.head_keys(at) == [new.public]
    assert len(known.head_keys(at - US)) == 2


def test_a_revocation_can_be_made_earlier_and_not_later(tmp_path: Path) -> None:
    path, at = tmp_path / "signing.key", datetime(2026, 11, 20, 8, tzinfo=UTC)
    old = SigningKey.create(path)
    SigningKey.rotate(path)
    revoke(path, old.key_id, at)
    with pytest.raises(KeyFileError, match="revoked already"):
        revoke(path, old.key_id, at + timedelta(days=1))
    revoke(path, old.key_id, at - timedelta(days=1))
    assert read_public_keys(public_file(path))[0].revoked_at == at - timedelta(days=1)
    with pytest.raises(KeyFileError, match="does not list"):
        revoke(path, STRANGER.key_id, at)


# Seen red with a line that replaces the delegation: the key then counted for heads.
def test_a_delegated_key_that_is_revoked_is_not_pinned_by_that(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    parent, daily = SigningKey.create(path), SigningKey.in_memory()
    key = delegate(daily.public, BEGIN, UNTIL, parent)
    add_public_key(path, key)
    add_public_key(path, key)
    revoke(path, daily.key_id, ROW_AT)
    known = read_public_keys(public_file(path))
    assert [line.line for line in known] == [str(parent.public), key.line, delegations.revoked(daily, ROW_AT)]
    assert known.head_keys(ROW_AT - US) == [parent.public]
    assert known.row_keys(daily.public.fingerprint, ROW_AT - US) == [key]
    assert known.row_keys(daily.public.fingerprint, ROW_AT) == []


def test_lines_are_added_by_several_at_once(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    path = tmp_path / "signing.key"
    parent = SigningKey.create(path)
    keys = [delegate(SigningKey.in_memory().public, BEGIN, UNTIL, parent) for _ in range(24)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: add_public_key(path, key), keys))
    assert set(read_public_keys(public_file(path))) == {parent.public, *keys}


def test_a_long_text_may_be_signed_by_its_digest() -> None:
    from audit.proof.keys import SIGNED_BYTES_MAX, digest_text

    long, short = b"x" * (SIGNED_BYTES_MAX + 1), b"x" * SIGNED_BYTES_MAX
    assert KEY.public.verify(KEY.sign(long), long)
    assert KEY.public.verify(KEY.sign(digest_text(long)), long)
    assert not KEY.public.verify(KEY.sign(digest_text(short)), short)
    assert not KEY.public.verify(KEY.sign(digest_text(long)), long + b"y")
    assert not ROTATED.public.verify(KEY.sign(digest_text(long)), long)


# Seen red without the check of the revoked lines in `signing_key_of`.
def test_an_engine_does_not_start_with_a_revoked_key_in_its_file(tmp_path: Path) -> None:
    from engine import settings as settings_file
    from engine import signing
    from engine.errors import ConfigurationError

    settings = settings_file.load({}, data_dir=tmp_path)
    key = signing.make_signing_key(settings)
    revoke(tmp_path / "signing.key", key.key_id, ROW_AT)
    with pytest.raises(ConfigurationError, match=r"revoked .*audit key --new"):
        signing.signing_key_of(settings, list)
    made = signing.make_signing_key(settings)
    assert signing.signing_key_of(settings, list).key_id == made.key_id != key.key_id


def test_a_public_file_that_is_mounted_read_only_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database and the vault have the line too. A full disk is another matter: then the key is not used."""
    import errno

    from audit.errors import NoSigningKeyError
    from engine import settings as settings_file
    from engine import signing

    def refused(number: int) -> None:
        def add(*_: object) -> None:
            raise OSError(number, "no")

        monkeypatch.setattr(signing, "add_public_key", add)

    settings = settings_file.load({}, data_dir=tmp_path)
    for number in (errno.EROFS, errno.EACCES):
        refused(number)
        signing.publish_delegation(settings, given())
    refused(errno.ENOSPC)
    with pytest.raises(NoSigningKeyError, match="cannot be written"):
        signing.publish_delegation(settings, given())
