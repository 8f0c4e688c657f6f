"""The verdict on a `.tlog-proof`, alone or beside the proof of a record. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from audit.errors import NoteError
from audit.heads.policy import WitnessPolicy
from audit.heads.tlog_proof import FIRST_LINE, open_tlog_proof, parse_tlog_proof
from audit.proof.keys import PublicKey
from audit.proof.verdict import Finding, Report, Verdict

NO_POLICY = (
    "policies of witnesses were given, so only the log itself vouches for the head of its log of heads"
)


@dataclass(frozen=True, slots=True)
class HeadsProof:
    """What an auditor holds of the log of heads: a proof, and whose cosignatures it needs."""

    content: bytes
    policy: WitnessPolicy | None = None


def is_tlog_proof(content: bytes) -> bool:
    return content.startswith(f"{FIRST_LINE}\n".encode())


def check_heads(given: HeadsProof, keys: Sequence[PublicKey], entry: bytes | None = None) -> Report:
    """VALID if the month's head, the entry, is in the log of heads, and its witnesses are as many as the policy demands."""
    report = Report()
    try:
        proof = parse_tlog_proof(given.content.decode())
        proven = open_tlog_proof(proof, keys, entry)
        cosigners = given.policy.cosigners(proven.signed) if given.policy else []
    except (NoteError, UnicodeDecodeError) as wrong:
        report.add(Finding(Verdict.TAMPERED, "head", str(wrong)))
        return report
    report.checked = 1
    month, size = proven.month_head.month, proven.month_head.size
    if given.policy is None:
        report.count(NO_POLICY, 0)
    elif message := _lacks(given.policy, proven.head.origin, keys, cosigners):
        report.add(Finding(Verdict.CANNOT_TELL, "head", message, month, size - 1))
    else:
        report.count("witnesses cosigned the head of the log of heads", len(cosigners))
    return report


def _lacks(policy: WitnessPolicy, origin: str, keys: Sequence[PublicKey], cosigners: Sequence[str]) -> str:
    if policy.logs and not any(
        log.name == origin and log.raw in {key.raw for key in keys} for log in policy.logs
    ):
        return f"The policy is of other logs than {origin}"
    if not policy.is_met_by(cosigners):
        named = ", ".join(cosigners) or "none of them"
        return f"The witnesses that the policy demands have not all cosigned the head of the log of heads: {named}"
    return ""
