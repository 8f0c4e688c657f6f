"""Copies a vault into another one. What the log's keys signed and what its names say is verified first; each copy is read back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from audit.anchored import MonthAnchors, list_anchors, read
from audit.errors import NoteError, VaultConflictError, VaultDamagedError
from audit.progress import Progress
from audit.proof.archive_format import place_of
from audit.proof.checkpoint import open_break, open_note
from audit.proof.keys import PublicKey
from audit.proof.merkle import Frontier
from audit.vault import PIECE_BYTES, Vault, digest_of

NOT_COPIED = "doctor/"  # probes
STOPPED = "The copy was stopped. Nothing is changed in the vault that was read; a copy can be repeated."


@dataclass(frozen=True, slots=True)
class VaultCopied:
    """How much the other vault now has of this one."""

    objects: int
    size: int
    heads: int  # anchored heads whose leaves were recomputed


def copy_vault(
    source: Vault, target: Vault, keys: Sequence[PublicKey], folder: Path, progress: Progress
) -> VaultCopied:
    """Idempotent. `VaultDamagedError` if an object is not what was written, before any of the same month's is copied."""
    origins, heads = _check_anchors(source, keys)
    _check_target(target, keys, origins)
    names = [name for name in source.keys("") if not name.startswith(NOT_COPIED)]
    size = 0
    for done, name in enumerate(names, 1):
        size += _copy(source, target, name, folder)
        progress("copied", done, len(names))
    return VaultCopied(len(names), size, heads)


def _check_anchors(vault: Vault, keys: Sequence[PublicKey]) -> tuple[set[str], int]:
    """Recompute each anchored head, also of histories that a break ended; returns the log's names, and how many heads."""
    origins: set[str] = set()
    heads = 0
    for anchors in list_anchors(vault).values():
        for number, note in anchors.breaks.items():
            origins.add(_origin_of_break(anchors, number, note, keys))
        for breaks in range(len(anchors.breaks) + 1):
            found = list(_check_chain(vault, anchors, breaks, keys))
            heads += len(found) if breaks == len(anchors.breaks) else 0
            origins.update(found)
    return origins, heads


def _check_chain(
    vault: Vault, anchors: MonthAnchors, breaks: int, keys: Sequence[PublicKey]
) -> Iterator[str]:
    """The origin of each head of the history after so many breaks."""
    chain, tree = anchors.chain(breaks), Frontier()
    for size in chain.sizes:
        key = chain.key(size)
        try:
            head = open_note(read(vault, key).decode(errors="replace"), keys)
        except NoteError as wrong:
            raise VaultDamagedError(f"{key} is damaged: {wrong}. {STOPPED}") from None
        leaves, damaged = chain.leaves(vault, tree.size, size)
        for index in range(tree.size, size):
            tree.append(leaves.get(index, b""))
        if damaged or (head.month, head.size, head.root) != (anchors.month, size, tree.root()):
            raise VaultDamagedError(f"{key} is not what the leaves beside it give. {STOPPED}")
        yield head.origin


def _origin_of_break(anchors: MonthAnchors, number: int, note: bytes, keys: Sequence[PublicKey]) -> str:
    try:
        broken = open_break(note.decode(errors="replace"), keys)
    except NoteError as wrong:
        raise VaultDamagedError(
            f"The break {number} of {anchors.month:%Y-%m} is damaged: {wrong}. {STOPPED}"
        ) from None
    return broken.origin


def _check_target(target: Vault, keys: Sequence[PublicKey], origins: set[str]) -> None:
    """It may have a part of this log already, or more of it, but nothing of another one."""
    for anchors in list_anchors(target).values():
        chain = anchors.chain()
        for size in chain.sizes:
            key = chain.key(size)
            try:
                is_ours = open_note(read(target, key).decode(errors="replace"), keys).origin in origins
            except NoteError:
                is_ours = False
            if not is_ours:
                raise VaultConflictError(f"The other vault holds anchors of another log ({key}). {STOPPED}")


def _copy(source: Vault, target: Vault, name: str, folder: Path) -> int:
    """Through a file, because an object may be larger than the memory. Its size is returned."""
    with TemporaryDirectory(dir=folder, prefix=".copy-") as made:
        path = Path(made, "object")
        with source.open(name) as reading, path.open("xb") as writing:
            while piece := reading.read(PIECE_BYTES):
                writing.write(piece)
        with path.open("rb") as file:
            digest = digest_of(file)
        _, named = place_of(name)
        if named not in {None, digest}:
            raise VaultDamagedError(
                f"{name} is damaged: its bytes are not those that its name says. {STOPPED}"
            )
        stored = target.put_file(name, path)
    with target.open(name, stored.version) as back:
        if digest_of(back) != digest:
            raise VaultDamagedError(
                f"{name} reads differently from the vault that it was copied to. {STOPPED}"
            )
    return stored.size
