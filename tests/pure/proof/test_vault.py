"""The folder vault: what is written stays."""

import contextlib
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from audit.errors import VaultConflictError, VaultDamagedError
from audit.vault import PIECE_BYTES, FolderVault, Stored


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "vault"


@pytest.fixture
def vault(folder: Path) -> FolderVault:
    return FolderVault(folder)


def test_what_is_put_is_got_back(vault: FolderVault, folder: Path) -> None:
    content = bytes(range(256)) * 10
    assert vault.put("anchors/2026/1", content) == sha256(content).hexdigest()
    assert vault.get("anchors/2026/1") == content
    assert FolderVault(folder).get("anchors/2026/1") == content


def test_same_bytes_again_are_a_success(vault: FolderVault) -> None:
    assert vault.put("a", b"one") == vault.put("a", b"one") == sha256(b"one").hexdigest()
    assert vault.put("empty", b"") == vault.put("empty", b"")


@pytest.mark.parametrize("other", [b"two", b"", b"one ", b"on"])
def test_other_bytes_are_refused_and_what_is_written_survives(vault: FolderVault, other: bytes) -> None:
    vault.put("a", b"one")
    with pytest.raises(VaultConflictError):
        vault.put("a", other)
    assert vault.get("a") == b"one"
    vault.put("b", other)
    assert vault.keys() == ["a", "b"]


def test_file_is_read_only(vault: FolderVault, folder: Path) -> None:
    vault.put("a/b", b"one")
    assert stat.S_IMODE((folder / "a/b").stat().st_mode) & 0o222 == 0


def test_absent_key_is_an_error(vault: FolderVault) -> None:
    with pytest.raises(FileNotFoundError):
        vault.get("a")


@pytest.mark.parametrize(
    "key",
    ["..", "../a", "a/../../b", "a/../b", "/etc/passwd", "/", ".hidden", "a/.hidden", ".hidden/a",
     "a/..", "", ".", "a\0b"],
    ids=repr,
)  # fmt: skip
def test_path_trick_is_no_key(vault: FolderVault, folder: Path, key: str) -> None:
    vault.put("b", b"one")
    with pytest.raises(ValueError, match=r".+"):
        vault.put(key, b"two")
    with pytest.raises(ValueError, match=r".+"):
        vault.get(key)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert [path.name for path in folder.iterdir()] == ["b"]


def test_absolute_path_into_the_vault_is_no_key(vault: FolderVault, folder: Path) -> None:
    with pytest.raises(ValueError, match="Not a key"):
        vault.put(str(folder / "a"), b"one")


def test_link_out_of_the_vault_is_not_followed(vault: FolderVault, folder: Path) -> None:
    vault.put("a", b"one")
    outside = folder.parent / "outside"
    outside.mkdir()
    (folder / "out").symlink_to(outside)
    with pytest.raises(ValueError, match="Not a key"):
        vault.put("out/b", b"two")
    assert list(outside.iterdir()) == []


def test_keys_are_listed_in_order_by_prefix(vault: FolderVault) -> None:
    for key in ("anchors/2", "anchors/10", "anchors-old/1", "months/2026-01", "top"):
        vault.put(key, key.encode())
    assert vault.keys() == ["anchors-old/1", "anchors/10", "anchors/2", "months/2026-01", "top"]
    assert vault.keys("anchors/") == ["anchors/10", "anchors/2"]
    assert vault.keys("anchors") == ["anchors-old/1", "anchors/10", "anchors/2"]
    assert vault.keys("none") == []


def test_empty_vault_has_no_keys(vault: FolderVault) -> None:
    assert vault.keys() == []


def test_unfinished_drafts_are_not_listed(vault: FolderVault, folder: Path) -> None:
    vault.put("a/b", b"one")
    (folder / "a/.b.123").write_bytes(b"half")
    assert vault.keys() == ["a/b"]


def test_crash_after_publishing_does_not_open_the_key_again(
    vault: FolderVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft that is left over is the published file by another name: it must not be written to."""
    with monkeypatch.context() as crashing, contextlib.suppress(OSError):
        crashing.setattr(Path, "unlink", _power_cut)
        vault.put("a", b"one")
    assert vault.get("a") == b"one"
    with pytest.raises(VaultConflictError):
        vault.put("a", b"two")
    assert vault.get("a") == b"one"


def _power_cut(*_: object, **__: object) -> None:
    raise OSError("power cut")


@pytest.mark.parametrize(
    "contents", [[b"same"] * 8, [b"%d" % n * 100_000 for n in range(8)]], ids=["same", "other"]
)
def test_of_concurrent_writers_one_wins(vault: FolderVault, contents: list[bytes]) -> None:
    """Threads of one process, many times over: a race does not show at the first try."""
    ready = threading.Barrier(len(contents))

    def write(key: str, content: bytes) -> bool:
        ready.wait(10)
        try:
            assert vault.put(key, content) == sha256(content).hexdigest()
        except VaultConflictError:
            return False
        return True

    with ThreadPoolExecutor(len(contents)) as pool:
        for attempt in range(20):
            key = f"key/{attempt}"
            written = list(pool.map(write, [key] * len(contents), contents))
            held = vault.get(key)
            assert written == [content == held for content in contents]
            assert vault.get(key) == held


def file_of(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, 3 * PIECE_BYTES + 1])
def test_a_file_is_stored_by_its_digest_and_read_from_any_place(
    vault: FolderVault, folder: Path, tmp_path: Path, size: int
) -> None:
    content = os.urandom(size)
    digest = sha256(content).hexdigest()
    stored = vault.put_file("months/a", file_of(tmp_path / "file", content))
    assert stored == Stored("months/a", digest, digest, size)
    assert vault.put_file("months/a", tmp_path / "file") == stored
    assert vault.put("months/a", content) == stored.version
    assert stat.S_IMODE((folder / "months/a").stat().st_mode) & 0o222 == 0
    with vault.open("months/a", stored.version) as stream:
        assert stream.read() == content
        assert stream.seek(size // 2) == size // 2
        assert stream.read(10) == content[size // 2 :][:10]


def test_another_file_is_refused_and_leaves_nothing(vault: FolderVault, folder: Path, tmp_path: Path) -> None:
    vault.put("a", b"one")
    with pytest.raises(VaultConflictError):
        vault.put_file("a", file_of(tmp_path / "file", b"two"))
    assert vault.get("a") == b"one"
    assert [path.name for path in folder.iterdir()] == ["a"]


# Seen red with the version not looked at.
def test_a_version_is_its_bytes(vault: FolderVault, folder: Path) -> None:
    version = vault.put("a", b"one")
    assert vault.get("a", version) == b"one"
    (folder / "a").chmod(0o600)
    (folder / "a").write_bytes(b"two")
    with pytest.raises(VaultDamagedError):
        vault.get("a", version)
    with pytest.raises(FileNotFoundError):
        vault.open("b", version)


# Seen red with only the file's own folder synced: the folder's name is lost with the power.
def test_a_new_folder_is_durable_up_to_the_vaults_own(
    vault: FolderVault, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    real = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    vault.put("a/b/c", b"one")
    assert synced[1:] == [folder / "a/b", folder / "a", folder, folder.parent]


def test_a_draft_that_cannot_be_finished_is_removed(
    vault: FolderVault, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _power_cut)
        with pytest.raises(OSError, match="power cut"):
            vault.put("a", b"one")
    assert list(folder.iterdir()) == []
    assert vault.put("a", b"two") == sha256(b"two").hexdigest()
