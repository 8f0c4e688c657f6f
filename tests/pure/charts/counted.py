"""A log that is only counts, for charts without a database."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

from audit.charts.figures.chart_log import added_up
from audit.charts.figures.choice import ChartChoice
from audit.charts.rollups.fact import SealedFact
from audit.charts.rollups.rollup import Counts, counts_of

BEGIN = datetime(2026, 10, 1, tzinfo=UTC)


@dataclass(slots=True)
class CountedLog:
    counts: Counts
    choice: ChartChoice

    def sums(self, measure: str, *by: str, value: str | None = None) -> Counts:
        return added_up(self.counts, self.choice, measure, by, value)


def fact(at: datetime = BEGIN, **given: object) -> SealedFact:
    fields = dict.fromkeys(SealedFact._fields) | {
        "timestamp": at, "sealed_at": at + timedelta(seconds=4), "anchored_at": at + timedelta(seconds=20), "is_question": True,
        "outcome": "answered", "repeat_count": 1,
    }  # fmt: skip
    return SealedFact(**(fields | given))  # type: ignore[arg-type]


def logged(choice: ChartChoice, facts: Sequence[SealedFact]) -> CountedLog:
    return CountedLog(counts_of(facts), choice)


def month_of_facts(count: int = 4000, seed: int = 7) -> list[SealedFact]:
    """A month of a small site, with a new model and a new edition in the middle."""
    random, facts = Random(seed), []
    for number in range(count):
        at = BEGIN + timedelta(days=30) * (number / count)
        best = min(1.0, max(0.0, random.gauss(0.72, 0.14)))
        outcome = random.choices(("answered" if best >= 0.6 else "refused", "served", "failed"), (90, 8, 2))[
            0
        ]
        searched, generated = int(random.lognormvariate(3.3, 0.5)), int(random.lognormvariate(6.6, 0.6))
        facts.append(
            fact(
                at, outcome=outcome, is_question=outcome != "served", reason=random.choice(("not_covered", "not_covered",
                "insufficient_evidence", "citation_failed")) if outcome == "refused" else None, best_score=best, threshold=0.6,
                book_id=random.choice(("physical-ai", "physical-ai", "manual")), client_id=random.choice(("docs-site", "app", "intranet")),
                retrieval_latency_ms=searched, generation_latency_ms=generated, total_latency_ms=searched + generated + 6,
                tokens_input=random.randrange(600, 2400), tokens_output=random.randrange(40, 300),
                model_used="claude-haiku-5" if number < count / 2 else "claude-haiku-5-5", prompt_sha256="ab12" * 16,
                code_version="0.1.0" if number < count / 3 else "0.2.0", embedder="minilm", calibration_id="self-2026-09",
                index_generation="0198c0de-0000-7000-8000-00000000000" + ("1" if number < count * 0.7 else "2"),
                chapter=random.choice(("Sensors", "Actuators", "Balance and gait", "ROS 2", "Safety of people around robots at work")),
                sealed_at=at + timedelta(seconds=random.uniform(0.1, 6)), anchored_at=at + timedelta(seconds=random.uniform(3, 40)),
            )
        )  # fmt: skip
    return facts
