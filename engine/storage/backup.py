"""What a backup is, read from its files before anything is restored: a dump of `pg_dump` or a folder of `pg_basebackup`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.errors import BackupError

Kind = Literal["custom", "directory", "tar", "plain", "base backup"]

_END = b"PostgreSQL database dump complete"
_END_BYTES = 4096  # the line of the end is within the last of them
_TAR_MAGIC = slice(257, 262)
_TAR_END_BYTES = 1024  # two blocks of zeros end a tar
_COMPRESSED = {b"\x1f\x8b": "gzip -d", b"\x28\xb5": "zstd -d", b"\x04\x22": "lz4 -d"}
_VERSION = re.compile(r"[Dd]umped from database version:? (\d+)")
# Of a dump as SQL: whom it names as an owner or gives a right to.
_NAMES = re.compile(r'\b(?:OWNER TO|TO|FROM|FOR ROLE|AUTHORIZATION) ("(?:[^"]|"")+"|[a-z_][a-z0-9_$]*)')
_NAMING = ("ALTER ", "GRANT ", "REVOKE ", "SET SESSION AUTHORIZATION ")


@dataclass(frozen=True, slots=True)
class Backup:
    path: Path
    kind: Kind

    @property
    def size(self) -> int:
        """In bytes, as it lies there."""
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return sum(file.stat().st_size for file in files if file.is_file())

    def __str__(self) -> str:
        return self.kind if self.kind == "base backup" else f"dump in {self.kind} format"


def dump_at(path: Path) -> Backup:
    if path.is_dir():
        if (path / "PG_VERSION").exists():
            raise BackupError(f"{path} is a base backup. Give it as --base-backup.")
        if not (path / "toc.dat").exists():
            raise BackupError(
                f"{path} is no dump: pg_dump --format=directory writes a file toc.dat, and it is missing."
            )
        return Backup(path, "directory")
    with path.open("rb") as file:
        head = file.read(512)
    if head.startswith(b"PGDMP"):
        return Backup(path, "custom")
    if head[_TAR_MAGIC] == b"ustar":
        return _tar(path)
    if program := _COMPRESSED.get(head[:2]):
        raise BackupError(f"{path} is compressed. Unpack it first: {program}.")
    if b"PostgreSQL database dump" not in head:
        raise BackupError(f"{path} is no dump of pg_dump. Give the file or the folder that pg_dump wrote.")
    return _plain(path)


def base_backup_at(folder: Path, ours: int) -> Backup:
    """`ours` is the major version of the programs that will start it."""
    if not folder.is_dir():
        raise BackupError(f"{folder} is no folder. A dump of pg_dump is given as --dump.")
    if list(folder.glob("base.tar*")):
        raise BackupError(
            f"{folder} has the backup as a tar. Unpack base.tar into an empty folder and pg_wal.tar into its pg_wal, and give that folder."
        )
    try:
        version = (folder / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise BackupError(
            f"{folder} is no base backup: it has no file PG_VERSION. Give the folder that pg_basebackup wrote."
        ) from None
    if version != str(ours):
        raise BackupError(
            f"{folder} is a base backup of PostgreSQL {version}, and the programs here are of {ours}: a base backup starts with its"
            " own major version only. Try a dump of pg_dump, or restore it on a server of that version and run `affidavit audit verify`."
        )
    if (folder / "tablespace_map").exists() or any((folder / "pg_tblspc").glob("*")):
        raise BackupError(
            f"{folder} has tablespaces, whose links lead to the folders of the running server, so it is not started."
            " Restore it on a machine of its own and run `affidavit audit verify`."
        )
    return Backup(folder, "base backup")


def check_version(text: str, path: Path, ours: int) -> None:
    """`text` has the version that the dump says it is of."""
    found = _VERSION.search(text)
    if found and int(found[1]) > ours:
        raise BackupError(
            f"{path} is a dump of PostgreSQL {found[1]}, and the programs here are of {ours}: an older server cannot take it."
            " Restore it on a server of that version and run `affidavit audit verify`."
        )


def roles_named(lines: Iterator[str]) -> set[str]:
    """The roles that a dump as SQL needs; a few words more do no harm in a scratch server."""
    found: set[str] = set()
    for line in lines:
        if line.startswith(_NAMING):
            found.update(name.strip('"').replace('""', '"') for name in _NAMES.findall(line))
    return {name for name in found if not name.startswith("pg_") and name not in {"public", "none"}}


def lines_of(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from file


def _tar(path: Path) -> Backup:
    """pg_restore may wait for ever for the rest of a truncated file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAR_END_BYTES))
        if file.read().strip(b"\0"):
            raise BackupError(f"{path} is truncated: the end of the tar is missing. Take another backup.")
    return Backup(path, "tar")


def _plain(path: Path) -> Backup:
    """psql takes what there is of a truncated file, and says nothing."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _END_BYTES))
        if _END not in file.read():
            raise BackupError(f"{path} is truncated: its last line is missing. Take another backup.")
    return Backup(path, "plain")
