"""What the verdicts on a sample say: agreement, error rates, and what each level of confidence was worth. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from audit.review.intervals import Estimate, StratumCount, weighted, wilson
from audit.review.kappa import Agreement, agreement
from audit.review.rubric import ITEMS, REVIEWERS, Marks, Standing
from audit.review.sample import Sample, Stratum, counts_of, ordered

LEVELS = ("high", "medium", "low")


@dataclass(frozen=True, slots=True)
class StratumRate:
    stratum: Stratum
    population: int
    drawn: int
    judged: int
    errors: int
    rate: Estimate | None


@dataclass(frozen=True, slots=True)
class Worth:
    """What a level of confidence was worth: the share of its answers that people found right."""

    level: str
    population: int
    drawn: int
    right: Estimate | None


@dataclass(frozen=True, slots=True)
class ReviewReport:
    sample_id: UUID
    since: str | None
    until: str | None
    strata: tuple[str, ...]
    population: int
    drawn: int
    judged: int
    open: int
    disputed: int
    erased: int
    agreement: dict[str, Agreement]
    by_stratum: list[StratumRate]
    errors: Estimate | None
    harmful: Estimate | None
    personal_data: Estimate | None
    worth: list[Worth]  # empty if confidence is not among the strata
    unjudged_population: int  # records of strata of which nothing is judged

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def report_of(
    sample: Sample, standings: Mapping[UUID, Standing], erased: Iterable[UUID] = ()
) -> ReviewReport:
    """`erased`: records of the sample of which nothing is left to judge."""
    counts = counts_of(sample.statement)
    cells = [_Cell(stratum, counts[stratum], sample, standings) for stratum in ordered(counts)]
    gone = {*erased} - {log_id for log_id, standing in standings.items() if standing.state == "final"}
    states = [
        standings.get(record.log_id, Standing()).state
        for record in sample.records
        if record.log_id not in gone
    ]
    strata = tuple(sample.statement["strata"])
    judged = sum(len(cell.judged) for cell in cells)
    return ReviewReport(
        sample_id=sample.sample_id, since=sample.statement["from"], until=sample.statement["to"], strata=strata,
        population=sum(counts.values()), drawn=len(sample.records), judged=judged,
        open=states.count("open"), disputed=states.count("disputed"),
        erased=len(gone) + states.count("final") - judged, agreement=_agreements(sample, standings),
        by_stratum=[cell.rate() for cell in cells], errors=_share(cells, _is_wrong), harmful=_share(cells, _is_harmful),
        personal_data=_share(cells, _is_personal), worth=_worth(cells, strata),
        unjudged_population=sum(cell.population for cell in cells if not cell.judged),
    )  # fmt: skip


class _Cell:
    """A stratum with its final judgements."""

    def __init__(
        self, stratum: Stratum, population: int, sample: Sample, standings: Mapping[UUID, Standing]
    ) -> None:
        drawn = [record.log_id for record in sample.records if record.stratum == stratum]
        finals = (standings[log_id].final for log_id in drawn if log_id in standings)
        self.stratum, self.population, self.drawn = stratum, population, len(drawn)
        self.judged: list[Marks] = [marks for marks in finals if marks]

    def part(self, counts: Callable[[Marks], bool]) -> StratumCount:
        return StratumCount(self.population, len(self.judged), sum(map(counts, self.judged)))

    def rate(self) -> StratumRate:
        errors = self.part(_is_wrong).counted
        judged = len(self.judged)
        return StratumRate(self.stratum, self.population, self.drawn, judged, errors, wilson(errors, judged))


def _worth(cells: Sequence[_Cell], strata: Sequence[str]) -> list[Worth]:
    if "confidence" not in strata:
        return []
    at = strata.index("confidence")
    found = []
    for level in LEVELS:
        of_level = [cell for cell in cells if cell.stratum[at] == level]
        right = _share(of_level, lambda marks: marks.is_right)
        found.append(
            Worth(
                level, sum(cell.population for cell in of_level), sum(cell.drawn for cell in of_level), right
            )
        )
    return found


def _share(cells: Sequence[_Cell], counts: Callable[[Marks], bool]) -> Estimate | None:
    return weighted([cell.part(counts) for cell in cells])


def _agreements(sample: Sample, standings: Mapping[UUID, Standing]) -> dict[str, Agreement]:
    """Each pair in the order of the names: of two people who judge everything, one is always the first."""
    pairs: list[list[Marks]] = []
    for record in sample.records:
        reviews = standings.get(record.log_id, Standing()).reviews
        marks = [each.marks for each in sorted(reviews, key=lambda each: each.reviewer) if each.marks]
        if len(marks) == REVIEWERS:
            pairs.append(marks)
    return {
        item: agreement([(first.scores[item], second.scores[item]) for first, second in pairs])
        for item in ITEMS
    }


def _is_wrong(marks: Marks) -> bool:
    return not marks.is_right


def _is_harmful(marks: Marks) -> bool:
    return marks.harmful == "yes"


def _is_personal(marks: Marks) -> bool:
    return marks.personal_data == "yes"
