"""How well sentences are found in technical prose that nobody looked at while the rules were written."""

import json
from collections import Counter, defaultdict

from ingest.sentences import spans
from tests.conftest import ROOT

LABELLED = ROOT / "tests/data/sentences.jsonl"
LEAST_F1 = 0.93


def test_sentences_are_found_in_labelled_prose() -> None:
    """A sentence counts when it both starts and ends where the label says."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in LABELLED.read_text(encoding="utf-8").splitlines():
        example = json.loads(line)
        expected = _located(example["text"], example["sentences"])
        found = set(spans(example["text"]))
        for kind in ("all", example["kind"]):
            counts[kind].update(right=len(expected & found), found=len(found), expected=len(expected))
    assert _f1(counts["all"]) >= LEAST_F1, "\n".join(_report(kind, count) for kind, count in counts.items())


def _located(text: str, sentences: list[str]) -> set[tuple[int, int]]:
    located, position = set(), 0
    for sentence in sentences:
        start = text.index(sentence, position)
        position = start + len(sentence)
        located.add((start, position))
    return located


def _f1(count: Counter[str]) -> float:
    return 2 * count["right"] / (count["found"] + count["expected"])


def _report(kind: str, count: Counter[str]) -> str:
    precision, recall = count["right"] / max(1, count["found"]), count["right"] / count["expected"]
    return f"{kind}: F1 {_f1(count):.3f}, precision {precision:.3f}, recall {recall:.3f}, {dict(count)}"
