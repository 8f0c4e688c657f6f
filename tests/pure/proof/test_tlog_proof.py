"""C2SP's forms: proofs and policies that are written in the one way, vectors of the documents, and 10,000 mutations."""

import base64
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.errors import NoteError, PolicyError
from audit.heads.head import LogHead, entry_leaf, open_head, sign_head
from audit.heads.policy import WitnessPolicy, parse_policy
from audit.heads.proof_check import HeadsProof, check_heads
from audit.heads.tlog_proof import TlogProof, open_tlog_proof, parse_tlog_proof
from audit.heads.vkey import COSIGNER, VerifierKey, cosign
from audit.proof import merkle
from audit.proof.checkpoint import Checkpoint, sign_note
from audit.proof.keys import SigningKey
from audit.proof.merkle import consistency_proof, is_consistent, root
from audit.proof.note import SignedNote, of_base64, parse_note, parse_signatures, to_base64
from audit.proof.verdict import Verdict
from tests import second_verifier

ORIGIN = "affidavit/5f0c1c3e-6f43-4d3b-9a0a-0f6f0a5f9d11"
KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
STRANGER = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33))))
WITNESS = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))
WITNESS_KEY = VerifierKey("witness.example/w", COSIGNER, WITNESS.public_key().public_bytes_raw())
NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
POLICY = f"witness w {WITNESS_KEY}\nquorum w\n"
MUTATIONS = 10_000


def month_head(size: int, month: date = date(2026, 11, 1), origin: str = ORIGIN) -> str:
    return sign_note(Checkpoint(origin, month, size, sha256(b"%d" % size).digest(), NOW), KEY)


ENTRIES = [month_head(size) for size in range(1, 42)]
LEAVES = [entry_leaf(entry.encode()) for entry in ENTRIES]


def head_note(count: int = len(LEAVES), key: SigningKey = KEY, origin: str = ORIGIN) -> str:
    signed = parse_note(sign_head(LogHead(origin, count, root(LEAVES[:count])), key))
    return str(SignedNote(signed.text, (*signed.lines, cosign(signed.text, WITNESS, WITNESS_KEY.name, NOW))))


def proof(index: int = 17, **changed: object) -> TlogProof:
    given: dict[str, object] = {
        "index": index, "hashes": merkle.inclusion_proof(LEAVES, index), "note": head_note(), "extra": ENTRIES[index].encode(),
    }  # fmt: skip
    return TlogProof(**(given | changed))  # type: ignore[arg-type]


def verdict(content: bytes, policy: str = POLICY, entry: bytes | None = None) -> Verdict:
    """Of both verifiers, which agree."""
    found = check_heads(HeadsProof(content, parse_policy(policy)), [KEY.public], entry).verdict
    witnesses = [str(WITNESS_KEY)] if "witness" in policy else []
    assert second_verifier.heads(content, [str(KEY.public)], witnesses, entry) == found
    return found


def test_a_proof_is_read_as_it_was_written_and_proves_its_head() -> None:
    for index in range(len(LEAVES)):
        written = str(proof(index))
        read = parse_tlog_proof(written)
        assert str(read) == written
        assert open_tlog_proof(read, [KEY.public]).month_head.size == index + 1
        assert verdict(written.encode()) is Verdict.VALID


def test_a_proof_has_the_lines_of_the_standard() -> None:
    lines = str(proof()).split("\n")
    assert lines[0] == "c2sp.org/tlog-proof@v1"
    assert lines[1] == f"extra {base64.b64encode(ENTRIES[17].encode()).decode()}"
    assert lines[2] == "index 17"
    count = len(merkle.inclusion_proof(LEAVES, 17))
    assert [base64.b64decode(line) for line in lines[3 : 3 + count]] == merkle.inclusion_proof(LEAVES, 17)
    assert lines[3 + count : 5 + count] == ["", ORIGIN]
    assert str(proof(extra=b"")).split("\n")[1] == "index 17"


FORGED = {
    "another index": proof(index=18, hashes=merkle.inclusion_proof(LEAVES, 17), extra=ENTRIES[17].encode()),
    "another entry": proof(extra=ENTRIES[16].encode()),
    "a hash less": proof(hashes=merkle.inclusion_proof(LEAVES, 17)[:-1]),
    "a hash more": proof(hashes=[*merkle.inclusion_proof(LEAVES, 17), bytes(32)]),
    "a head of a stranger": proof(note=head_note(key=STRANGER)),
    "a smaller head": proof(note=head_note(30)),
    "a head of another log": proof(note=head_note(origin="affidavit/other")),
    "no entry": proof(extra=b""),
    "an entry that is none": proof(extra=b"x"),
}


# Seen red with `open_tlog_proof` that does not ask `is_included`.
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
def test_no_forged_proof_is_accepted(forged: TlogProof) -> None:
    assert verdict(str(forged).encode()) is Verdict.TAMPERED


def test_a_proof_beside_a_record_is_of_its_checkpoint() -> None:
    assert verdict(str(proof()).encode(), entry=ENTRIES[17].encode()) is Verdict.VALID
    assert verdict(str(proof(extra=b"")).encode(), entry=ENTRIES[17].encode()) is Verdict.VALID
    assert verdict(str(proof()).encode(), entry=ENTRIES[16].encode()) is Verdict.TAMPERED


def test_without_the_cosignatures_that_the_policy_demands_nothing_is_told() -> None:
    alone = str(SignedNote(parse_note(head_note()).text, parse_note(head_note()).lines[:1]))
    assert verdict(str(proof(note=alone)).encode()) is Verdict.CANNOT_TELL
    assert verdict(str(proof(note=alone)).encode(), "quorum none\n") is Verdict.VALID


# Seen red with a `verify` of cosigners that is always true.
def test_no_mutation_of_a_proof_a_head_or_a_cosignature_is_accepted() -> None:
    chance, content = random.Random(20), str(proof()).encode()
    for _ in range(MUTATIONS):
        assert verdict(mutated(content, chance)) is not Verdict.VALID


def mutated(content: bytes, chance: random.Random) -> bytes:
    """A bit flipped, a byte removed, doubled or exchanged with its neighbour."""
    while True:
        at, changed = chance.randrange(len(content)), bytearray(content)
        kind = chance.randrange(4)
        if kind == 0:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del changed[at]
        elif kind == 2:
            changed.insert(at, changed[at])
        else:
            changed[at - 1], changed[at] = changed[at], changed[at - 1]
        if changed != content:
            return bytes(changed)


def test_no_mutation_of_a_signed_head_has_another_meaning() -> None:
    chance, content = random.Random(21), head_note().encode()
    policy = parse_policy(POLICY)
    assert is_accepted(content, policy)
    assert not any(is_accepted(mutated(content, chance), policy) for _ in range(MUTATIONS))


def is_accepted(content: bytes, policy: WitnessPolicy) -> bool:
    try:
        head, signed = open_head(content.decode(), [KEY.public])
        return policy.is_met_by(policy.cosigners(signed)) and head.origin == ORIGIN
    except (NoteError, UnicodeDecodeError):
        return False


# Seen red with `is_consistent` that compares the new root alone.
def test_no_mutation_of_a_consistency_proof_is_accepted() -> None:
    chance = random.Random(22)
    for _ in range(MUTATIONS):
        old = chance.randrange(1, len(LEAVES))
        hashes = consistency_proof(LEAVES, old)
        before, after = root(LEAVES[:old]), root(LEAVES)
        assert is_consistent(old, len(LEAVES), before, after, hashes)
        parts = [bytearray(part) for part in (before, after, *hashes)]
        parts[chance.randrange(len(parts))][chance.randrange(32)] ^= 1 << chance.randrange(8)
        first, second, *others = map(bytes, parts)
        assert not is_consistent(old, len(LEAVES), first, second, others)


def test_ranges_give_the_proofs() -> None:
    for size in range(1, len(LEAVES) + 1):
        leaves = LEAVES[:size]
        for index in range(size):
            ranges = merkle.inclusion_ranges(index, size)
            assert [root(leaves[a:b]) for a, b in ranges] == merkle.inclusion_proof(leaves, index)
            ranges = merkle.consistency_ranges(index, size)
            assert [root(leaves[a:b]) for a, b in ranges] == consistency_proof(leaves, index)


def test_the_examples_of_the_standards_documents_are_read() -> None:
    """signed-note, tlog-checkpoint and tlog-witness of C2SP show these, with real keys and signatures."""
    note = (
        "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
        "— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
        "— example.com/behind-the-sofa opLqBQsREYCgu6xQkYQwJr9fo45a62DN9EdmHXnZdXNqlcVGlCum2Wks+49/V6267UEjw6QUXTS5Rovnzv++qbSzm9Q=\n"
    )
    assert str(parse_note(note)) == note
    reply = (
        "— witness.example/w1 CMp+6LWBU0anHGH5aNDTJkH/gj79sG+T6+iP2ThYN5krrDJbR1HDnucjL39QsZTSvVjyQLrdk3DXDqI5G2HgLatVs0pWh6Up69HVOw==\n"
        "— witness.example/w1 I7rEps0pvK2UqkS2gSpVUDhrhVtQV9lgF6pRrWAvjJHjyWpW7VcE3SiOlVlbQNt64vWhO+DlkL0+UfzuOBMh9ChdMkP1vi/lCAsmlw==\n"
        "— witness.example/w2 AWui8Sk55XjYLOijihBjhqEH6nS1ndDymE0a+6idX7pLcnoB+dhnz0854aLZgrrKbYKA7nC3HNJhm/kWl7oJlqU3rXXvpysAdyP3wQ==\n"
    )
    assert [len(line.signature) for line in parse_signatures(reply)] == [72, 72, 72]
    hashes = [
        "gSKyXoYZUgZ6jduWYrkDOARinOMGJveXjgMkBTcdPlQ=", "B95lDa8R83lS8n0eG+o0buTxRKQTYFi//1U8anccXmA=",
        "EKNzoDWG8LGC0Yp9o+sv3qllpMP9uHQ9B20KNL+Q1zs=", "RoopEkOdqkYqMB4MJXrbt/hMjOxsVn0IrWjpz1ZMMes=",
        "AHCioX9nLjsrse6YhjRRmk1WUEirVOLLRoOQ6vfO5vk=",
    ]  # fmt: skip
    written = "c2sp.org/tlog-proof@v1\nindex 73894\n" + "".join(f"{line}\n" for line in hashes) + f"\n{note}"
    read = parse_tlog_proof(written)
    assert (read.index, [to_base64(part) for part in read.hashes], read.note) == (73894, hashes, note)
    assert str(read) == written


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda text: text.replace("index 17", "index 017"), "a zero"),
        (lambda text: text.replace("index 17", "index -17"), "a sign"),
        (lambda text: text.replace("@v1", "@v2"), "another version"),
        (lambda text: text.replace("extra ", "extra  "), "two spaces"),
        (lambda text: text.replace("\n", "\r\n"), "other line ends"),
        (lambda text: f" {text}", "a space before"),
        (lambda text: text.partition("\n\n")[0], "no head"),
    ],
)
def test_a_proof_that_is_written_in_another_way_is_none(change: Callable[[str], str], names: str) -> None:
    with pytest.raises(NoteError):
        parse_tlog_proof(change(str(proof())))


def keys(count: int) -> list[str]:
    raw = [
        Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32).public_key().public_bytes_raw()
        for n in range(count)
    ]
    return [str(VerifierKey(f"w{n}.example", COSIGNER, key)) for n, key in enumerate(raw)]


def example() -> WitnessPolicy:
    """The one of tlog-policy's document."""
    x1, x2, x3, y1, y2, y3 = keys(6)
    return parse_policy(
        f"# comment\n\nwitness X1 {x1}\n\twitness X2 {x2} https://x2.example/a/\nwitness  X3 {x3}\ngroup X-witnesses 2 X1 X2 X3\n"
        f"witness Y1 {y1}\nwitness Y2 {y2}\nwitness Y3 {y3}\ngroup Y-witnesses any Y1 Y2 Y3\n"
        "group X-and-Y all X-witnesses Y-witnesses\nquorum X-and-Y\n"
    )


@pytest.mark.parametrize(
    ("cosigners", "is_met"),
    [
        ("X1 X2 Y1", True), ("X2 X3 Y3", True), ("X1 X2 X3 Y1 Y2 Y3", True), ("X1 Y1", False), ("X1 X2 X3", False),
        ("Y1 Y2 Y3", False), ("", False), ("X1 X1 Y1", False), ("X-witnesses Y1", False),
    ],
)  # fmt: skip
def test_a_quorum_is_what_the_policy_says(cosigners: str, is_met: bool) -> None:
    assert example().is_met_by(cosigners.split()) is is_met


def test_addresses_are_read_without_their_last_slash() -> None:
    assert [witness.url for witness in example().witnesses.values()] == [
        "",
        "https://x2.example/a",
        "",
        "",
        "",
        "",
    ]


WRONG = {
    "no quorum": "witness a {0}\n",
    "two quorums": "witness a {0}\nquorum a\nquorum none\n",
    "an unknown quorum": "quorum a\n",
    "a quorum before its witness": "quorum a\nwitness a {0}\n",
    "a log's key": f"witness a {VerifierKey(ORIGIN, 1, KEY.public.raw)}\nquorum a\n",
    "a key twice": "witness a {0}\nwitness b {0}\nquorum a\n",
    "a name twice": "witness a {0}\nwitness a {1}\nquorum a\n",
    "the name none": "witness none {0}\nquorum none\n",
    "a threshold of none": "witness a {0}\ngroup g 0 a\nquorum g\n",
    "a threshold above its members": "witness a {0}\ngroup g 2 a\nquorum g\n",
    "a threshold with a zero": "witness a {0}\ngroup g 01 a\nquorum g\n",
    "a member twice": "witness a {0}\ngroup g 2 a a\nquorum g\n",
    "a member of two groups": "witness a {0}\ngroup g 1 a\ngroup h 1 a\nquorum g\n",
    "a group of none": "witness a {0}\ngroup g any\nquorum a\n",
    "itself as a member": "witness a {0}\ngroup g any g\nquorum g\n",
    "an unknown word": "witnesses a {0}\nquorum none\n",
    "a changed key": "witness a {0}A\nquorum a\n",
    "an address of another kind": "witness a {0} ftp://a.example\nquorum a\n",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_policy_is_refused_by_its_line(text: str) -> None:
    with pytest.raises(PolicyError):
        parse_policy(text.format(*keys(2)))


def test_base64_has_one_form() -> None:
    with pytest.raises(NoteError):
        of_base64("qGzX=")
