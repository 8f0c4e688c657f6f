"""The ladder of one record, rung by rung, as the offline verifier judges its proof and as the database says of the rest (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from audit import auditor
from audit.package import ladder as rungs
from audit.proof.keys import PublicKey
from audit.proof.quotation import differences
from audit.proof.verdict import PROVEN, Verdict

_JUST_SEALED = "It was sealed while this page was made. Load it again."
_LATER = "Nothing above an unproven record can be judged."


@dataclass(frozen=True, slots=True)
class RecordStanding:
    """Where a record is in its month's tree, and which heads cover it."""

    month: date
    leaf_index: int
    sealed_at: datetime
    tree_size: int | None
    signed_at: datetime | None
    anchored_size: int | None
    vault_key: str | None
    anchored_at: datetime | None
    heads_size: int | None
    has_quorum: bool | None
    published_at: datetime | None


class JudgedRung(NamedTuple):
    rung: rungs.Rung
    verdict: Verdict
    words: str


def ladder(
    row: Mapping[str, Any], passages: Mapping[str, Mapping[str, Any]], proof: bytes, why_none: str,
    standing: RecordStanding | None, keys: Sequence[PublicKey],
) -> list[JudgedRung]:  # fmt: skip
    """From the words to the time stamp."""
    found = [_words(row, passages), *_proven(proof, why_none, keys, standing)]
    return [*found, _vault(standing), _witness(standing), _stamp()]


def _words(row: Mapping[str, Any], passages: Mapping[str, Mapping[str, Any]]) -> JudgedRung:
    cited = row["citations"]
    if row["erased_at"] is not None:
        return JudgedRung(
            rungs.Rung.WORDS,
            Verdict.ERASED,
            "The words were erased. Only their commitments are left, and they prove the rest.",
        )
    if not isinstance(cited, list) or not cited:
        return JudgedRung(rungs.Rung.WORDS, Verdict.VALID, "It quotes nothing.")
    try:
        wrong = [
            each for citation in cited for each in differences(citation, passages.get(citation["chunk_id"]))
        ]
    except (KeyError, TypeError, ValueError):
        return JudgedRung(rungs.Rung.WORDS, Verdict.TAMPERED, "A quotation is not well formed.")
    if wrong:
        worst = min((verdict for verdict, _ in wrong), key=list(Verdict).index)
        return JudgedRung(rungs.Rung.WORDS, worst, "; ".join(words for _, words in wrong[:3]))
    number = "Its quotation is" if len(cited) == 1 else f"Its {len(cited)} quotations are"
    return JudgedRung(
        rungs.Rung.WORDS,
        Verdict.VALID,
        f"{number} cut again from the stored passages, character for character.",
    )


def _proven(
    proof: bytes, why_none: str, keys: Sequence[PublicKey], standing: RecordStanding | None
) -> list[JudgedRung]:
    """Row, leaf, month and checkpoint: what the offline verifier says of the proof."""
    which = (rungs.Rung.ROW, rungs.Rung.LEAF, rungs.Rung.MONTH, rungs.Rung.CHECKPOINT)
    if not proof or standing is None:
        return [
            JudgedRung(rungs.Rung.ROW, Verdict.CANNOT_TELL, why_none or _JUST_SEALED),
            *(JudgedRung(rung, Verdict.CANNOT_TELL, _LATER) for rung in which[1:]),
        ]
    report = auditor.check(proof, keys)
    if report.verdict not in PROVEN:
        words = "; ".join(finding.words for finding in report.findings) or str(report.verdict)
        return [JudgedRung(rung, report.verdict, words) for rung in which]
    place = f"leaf {standing.leaf_index} of {standing.month:%Y-%m}"
    said = (
        "The columns give the leaf, and the engine signed it.",
        f"It is {place}; its path leads to the root of a tree of {standing.tree_size}.",
        f"The checkpoint is of {standing.month:%Y-%m}.",
        f"A pinned key signed this tree at {_text(standing.signed_at)}.",
    )
    verdicts = [report.verdict, *[Verdict.VALID] * 3]
    return [JudgedRung(*each) for each in zip(which, verdicts, said, strict=True)]


def _vault(standing: RecordStanding | None) -> JudgedRung:
    if standing is None or standing.anchored_size is None:
        return JudgedRung(
            rungs.Rung.VAULT, Verdict.CANNOT_TELL, "No head that covers it is in the vault yet."
        )
    words = f"A tree of {standing.anchored_size} that covers it was anchored at {_text(standing.anchored_at)} as {standing.vault_key}."
    return JudgedRung(
        rungs.Rung.VAULT,
        Verdict.VALID,
        f"{words} The database says so; `affidavit audit verify` reads the vault itself.",
    )


def _witness(standing: RecordStanding | None) -> JudgedRung:
    if standing is None or not standing.has_quorum:
        return JudgedRung(
            rungs.Rung.WITNESS, Verdict.CANNOT_TELL, "No witness has cosigned a head that covers it."
        )
    words = f"Witnesses cosigned the log of heads at size {standing.heads_size}, published at {_text(standing.published_at)}."
    return JudgedRung(
        rungs.Rung.WITNESS, Verdict.VALID, f"{words} `affidavit audit prove --heads` gives their signatures."
    )


def _stamp() -> JudgedRung:
    return JudgedRung(
        rungs.Rung.TIME_STAMP,
        Verdict.CANNOT_TELL,
        "Time stamps are in the vault: `affidavit audit verify` compares them.",
    )


def _text(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at else "an unknown time"
