"""Instructions that the pure parts of a request take, counted by callgrind: the same whatever else the machine does.

Run as `python -m bench.instructions`. Needs valgrind. Each part runs in a process of its own; what the interpreter takes to
start and to import is measured with no rounds, and subtracted. The counts depend on the interpreter's build and not on the
machine's load, so that a change of a tenth is a change of the code.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from uuid import UUID

import numpy as np

from audit.fast_json import ParsedRow, read_row
from audit.proof.canonical import canonical_json
from audit.proof.merkle import Frontier
from audit.proof.record import Row, Trail, hashed, leaf_hash, row_of
from bench.results import Figure, record, show
from engine.grounding import cite
from engine.grounding.verify import NO_INSTRUCTIONS, is_proven, sentences_text
from engine.models import Calibration, Citation, Claim, Generation, Hit, Passage, RetrievedPassage, Sentence
from engine.retrieval import lexical, wording
from engine.retrieval.calibrate import Weights
from engine.retrieval.retrieve import Search, rank

ROUNDS = 200
COUNTED = re.compile(r"Collected : (\d+)")
ONE_WAY = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
NO_ROUNDS = "nothing"

QUESTION = "What does an inertial measurement unit measure, and why do humanoid robots need one?"
TEXT = (
    "An inertial measurement unit measures acceleration and angular velocity. Its readings drift over time. "
    "Humanoid robots need one to keep their balance while they walk. "
) * 8
SALT = bytes(range(32))

Part = Callable[[], object]


def main() -> None:
    start = instructions(NO_ROUNDS, 0)
    figures = [
        Figure(
            f"{name}, thousand instructions",
            round((instructions(name, ROUNDS) - start) / ROUNDS / 1000, 1),
            "",
        )
        for name in parts()
        if name != NO_ROUNDS
    ]
    for figure in figures:
        show(figure)
    record("instructions", [asdict(figure) for figure in figures])


def instructions(part: str, rounds: int) -> int:
    """What a process of its own takes for so many rounds of a part, its start included."""
    counted = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m", "bench.instructions",
         "--part", part, "--rounds", str(rounds)],
        env=os.environ | ONE_WAY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = COUNTED.search(counted.stderr)
    assert found, counted.stderr[-500:]
    return int(found[1])


def parts() -> dict[str, Part]:
    """Each part with what it works on at hand."""
    row, evidence, tree = _row(), _evidence(), Frontier()
    line = json.dumps(row | {"salt": f"\\x{SALT.hex()}"})
    search, hits = _search(), _hits()
    cited = Citation(0, 0, 1, sentences_text(evidence[0].passage, 0, 1))
    claim = Claim(cited.cited_text, (cited,))
    return {
        NO_ROUNDS: lambda: None,
        "a record's canonical text, commitments and leaf": lambda: hashed(row, SALT),
        "a record parsed and its leaf recomputed": lambda: leaf_hash(json.loads(line)),
        "a record of a whole month parsed and its leaf recomputed": lambda: _leaf(read_row(line)),
        "a passage list as canonical JSON": lambda: canonical_json(row["chunks_returned"]),
        "a leaf appended to a month's tree, and its root": lambda: _grown_root(tree),
        "a question's words and their weights": lambda: lexical.query_weights(
            lexical.words(QUESTION), search.generation.lexicon
        ),
        "a question's wording": lambda: wording.read(QUESTION, search.generation.lexicon, lambda _: True),
        "a hundred hits calibrated, blended and ordered": lambda: rank(hits, search, Weights(0.85, 0.15)),
        "a claim verified and its quotation cut": lambda: (
            is_proven(claim, evidence, NO_INSTRUCTIONS),
            cite.quoted(claim, evidence, 1),
        ),
    }


def _leaf(parsed: ParsedRow) -> bytes:
    return parsed.leaf(parsed.commitments())


def _run(part: str, rounds: int) -> None:
    """Every part once, for what only a first call takes; then this one."""
    made = parts()
    for first_call in made.values():
        first_call()
    for _ in range(rounds):
        made[part]()


def _grown_root(tree: Frontier) -> bytes:
    tree.append(SALT)
    return tree.root()


def _row() -> Row:
    passages = [
        {"chunk_id": sha256(bytes([n])).hexdigest(), "cosine": 0.5 + n / 100, "bm25": 3.25 + n, "score": 0.75, "position": n}
        for n in range(5)
    ]  # fmt: skip
    return row_of(
        Trail(
            log_id=UUID(int=1), query_id=UUID(int=2), timestamp=datetime(2026, 11, 20, 12, tzinfo=UTC),
            endpoint="/v1/query", user_query_text=QUESTION, llm_prompt=TEXT, answer_text=TEXT[:300],
            chunks_returned=passages, citations=passages[:2], client_id="docs-site", outcome="answered",
            confidence_score=0.8725, tokens_input=2_400, tokens_output=210, total_latency_ms=812,
        )
    )  # fmt: skip


def _evidence() -> list[RetrievedPassage]:
    ends = [match.end() for match in re.finditer(r"\. ", TEXT)]
    sentences = tuple(
        Sentence(start, end, "Sensors", "sensors", "42") for start, end in zip([0, *ends], ends, strict=False)
    )
    passage = Passage(
        sha256(TEXT.encode()).hexdigest(), "book", "document", "sensors.md", "Sensing", "Sensors", 0, TEXT, sentences,
        "42", "42", 0, len(sentences), "/docs/sensors", "digest",
    )  # fmt: skip
    search = _search()
    return [RetrievedPassage(passage, rank(_hits()[:1], search, Weights(0.85, 0.15))[0])]


def _hits() -> list[Hit]:
    return [Hit(sha256(bytes([n])).hexdigest(), n / 130, n / 9, n) for n in range(100)]


def _search() -> Search:
    words = lexical.words(QUESTION)
    lexicon = lexical.lexicon([lexical.words(TEXT), words, ["robot"], ["sensor"]])
    calibration = Calibration(
        "bench", "shipped", "known", 384, lexical.NORMALISATION,
        similarity=((0.0, 0.0), (0.36, 0.6), (0.75, 1.0)), lexical=((0.0, 0.0), (1 / 6, 1.0)),
    )  # fmt: skip
    generation = Generation(UUID(int=3), "book", "known", 384, calibration, lexicon)
    return Search(generation, words, np.zeros(0, np.float32), lexical.query_weights(words, lexicon))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", help="run this part; for internal use by the benchmark")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    if given.part is None:
        main()
    else:
        _run(given.part, given.rounds)
