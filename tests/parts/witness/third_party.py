"""Run by test_third_party.py with `aics-tlog` on its path: another implementation of C2SP's forms judges ours, and signs for us.

JSON on stdin and stdout.
"""

import json
import sys
from typing import Any

import aics_tlog as theirs
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def main() -> None:
    given = json.load(sys.stdin)
    json.dump(
        {"judged": [judged(given, note) for note in given["notes"]], "signed": signed(given)}, sys.stdout
    )


def judged(given: dict[str, Any], note: str) -> str:
    """What it says of a note of ours and of the proofs under it; empty if all is well."""
    try:
        witnesses = [theirs.parse_vkey(key) for key in given["witnesses"]]
        parsed = theirs.parse_note(note)
        found = theirs.verify_checkpoint(
            parsed, theirs.parse_vkey(given["log"]), witnesses, quorum=len(witnesses)
        )
        if not found.ok:
            return "the head or a cosignature is not valid"
        head = theirs.parse_checkpoint(parsed.text)
    except ValueError as wrong:
        return str(wrong)
    entries = [(entry.encode(), index, proof(hashes)) for index, entry, hashes in given["inclusion"]]
    if not all(
        theirs.verify_leaf_inclusion(entry, at, head.size, path, head.root) for entry, at, path in entries
    ):
        return "an entry is not included"
    grown = [(old, bytes.fromhex(root), proof(hashes)) for old, root, hashes in given["consistency"]]
    if not all(theirs.verify_consistency(old, head.size, root, head.root, path) for old, root, path in grown):
        return "a head is not consistent with an earlier one"
    return ""


def proof(hashes: list[str]) -> list[bytes]:
    return [bytes.fromhex(part) for part in hashes]


def signed(given: dict[str, Any]) -> str:
    """A head of the same log that it signs itself, with a cosignature of its own."""
    log, witness = (Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key)) for key in given["private"])
    origin, leaves = given["origin"], [entry.encode() for entry in given["entries"]]
    tree = theirs.MerkleTree(leaves)
    head = theirs.Checkpoint(origin, len(leaves), tree.root())
    note = theirs.sign_checkpoint(head, log, origin)
    _, line = theirs.sign_cosignature(
        witness, given["witness"], 1_767_000_000, origin, len(leaves), tree.root()
    )
    both = theirs.Note(text=note.text, signatures=(*note.signatures, line))
    content: bytes = both.to_bytes()
    return content.decode()


if __name__ == "__main__":
    main()
