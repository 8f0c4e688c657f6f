"""C2SP's tlog-policy: which witnesses there are, and how many of them must have cosigned a head. Pure.

witness alpha alpha.example+1a2b3c4d+BA… https://alpha.example/
witness beta  beta.example+5e6f7a8b+BA…  https://beta.example/
group both all alpha beta           or a number, or any
quorum both                         or a witness, or none
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from audit.errors import NoteError, PolicyError
from audit.heads.vkey import COSIGNER, LOG, VerifierKey
from audit.proof.note import SignedNote

NONE = "none"
MEMBERS_MAX = 100  # of witnesses and groups: a note has no more signatures


@dataclass(frozen=True, slots=True)
class PolicyWitness:
    name: str  # in the policy alone
    key: VerifierKey
    url: str  # empty: it can be verified, but not asked


@dataclass(frozen=True, slots=True)
class Group:
    threshold: int
    members: tuple[str, ...]


@dataclass(slots=True)
class WitnessPolicy:
    witnesses: dict[str, PolicyWitness] = field(default_factory=dict)
    logs: list[VerifierKey] = field(default_factory=list)  # that the policy names; empty: any
    quorum: str = ""
    groups: dict[str, Group] = field(default_factory=dict)

    @property
    def asks_for_cosignatures(self) -> bool:
        return self.quorum != NONE

    @property
    def keys(self) -> list[VerifierKey]:
        return [witness.key for witness in self.witnesses.values()]

    def cosigners(self, note: SignedNote) -> list[str]:
        """The witnesses that cosigned it; `NoteError` if a cosignature of one of them does not fit."""
        signed = {str(key) for key in note.signers(self.keys)}
        return [name for name, witness in self.witnesses.items() if str(witness.key) in signed]

    def is_met_by(self, cosigners: Sequence[str]) -> bool:
        return self.quorum == NONE or self._has(self.quorum, frozenset(cosigners))

    def _has(self, name: str, cosigners: frozenset[str]) -> bool:
        group = self.groups.get(name)
        if group is None:
            return name in cosigners
        return sum(self._has(member, cosigners) for member in group.members) >= group.threshold


def parse_policy(text: str) -> WitnessPolicy:
    """`PolicyError` names the line that is wrong."""
    policy = WitnessPolicy()
    for number, line in enumerate(text.split("\n"), 1):
        words = line.replace("\t", " ").split(" ")
        words = [word for word in words if word]
        if not words or words[0].startswith("#"):
            continue
        try:
            _READERS.get(words[0], _unknown)(policy, words)
        except (NoteError, ValueError) as wrong:
            raise PolicyError(f"Line {number} of the witness policy is wrong: {wrong}") from None
    if not policy.quorum:
        raise PolicyError("The witness policy has no quorum line, such as: quorum none")
    return policy


def _log(policy: WitnessPolicy, words: Sequence[str]) -> None:
    if len(words) not in {2, 3}:
        raise ValueError("write `log KEY`")
    policy.logs.append(_key(words[1], LOG))


def _witness(policy: WitnessPolicy, words: Sequence[str]) -> None:
    if len(words) not in {3, 4}:
        raise ValueError("write `witness NAME KEY URL`")
    key = _key(words[2], COSIGNER)
    if any(known.raw == key.raw for known in policy.keys):
        raise ValueError("another witness has the same key")
    url = words[3] if len(words) > 3 else ""  # noqa: PLR2004
    if url and not url.startswith(("https://", "http://")):
        raise ValueError(f"{url} is not an address: it begins with https:// or http://")
    policy.witnesses[_new(policy, words[1])] = PolicyWitness(words[1], key, url.rstrip("/"))


def _group(policy: WitnessPolicy, words: Sequence[str]) -> None:
    if len(words) < 4:  # noqa: PLR2004
        raise ValueError("write `group NAME 2 MEMBER…`, or any or all in place of the number")
    members = tuple(words[3:])
    for member in members:
        if member not in policy.witnesses and member not in policy.groups:
            raise ValueError(f"{member} is not defined above")
        if members.count(member) > 1 or any(member in group.members for group in policy.groups.values()):
            raise ValueError(f"{member} is already a member of a group")
    name = _new(policy, words[1])
    policy.groups[name] = Group(_threshold(words[2], len(members)), members)


def _quorum(policy: WitnessPolicy, words: Sequence[str]) -> None:
    if len(words) != 2:  # noqa: PLR2004
        raise ValueError("write `quorum NAME`")
    if policy.quorum:
        raise ValueError("there is a quorum already")
    if words[1] != NONE and words[1] not in policy.witnesses and words[1] not in policy.groups:
        raise ValueError(f"{words[1]} is not defined above")
    policy.quorum = words[1]


def _unknown(_: WitnessPolicy, words: Sequence[str]) -> None:
    raise ValueError(f"it begins with {words[0]!r}, and not with witness, group, quorum, log or #")


_READERS = {"log": _log, "witness": _witness, "group": _group, "quorum": _quorum}


def _new(policy: WitnessPolicy, name: str) -> str:
    known: Mapping[str, object] = {**policy.witnesses, **policy.groups, NONE: None}
    if name in known:
        raise ValueError(f"the name {name} is taken")
    if len(known) > MEMBERS_MAX:
        raise ValueError(f"there are more than {MEMBERS_MAX} witnesses and groups")
    return name


def _key(text: str, kind: int) -> VerifierKey:
    key = VerifierKey.of(text)
    if key.kind != kind:
        wanted = "a witness's, which begins with BA" if kind == COSIGNER else "a log's, which begins with AQ"
        raise ValueError(f"{text} is the key of another kind: give {wanted}")
    return key


def _threshold(text: str, count: int) -> int:
    number = {"any": 1, "all": count}.get(text) or (int(text) if text.isdecimal() and text.isascii() else 0)
    if not 1 <= number <= count or text.startswith("0"):
        raise ValueError(f"{text!r} is not any, all or a number from 1 to {count}")
    return number
