"""Handlers of the commands `affidavit audit sample` and `affidavit audit review …`; their registry is `REVIEW_COMMANDS`."""

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from audit.checking.evidence import EVER, Period
from audit.checking.inspection import inspect
from audit.proof.verdict import WHOLE, Report, Verdict
from audit.review import drawing
from audit.review.drawing import stratum_words
from audit.review.reviews import Person, RecordToJudge, Reviews
from audit.review.rubric import COMMENT_CHARACTERS_MAX, ITEMS, QUESTIONS, Marks
from audit.review.sample import STRATA, OtherPopulation, Sample, Wish, counts_of, read_sample, wish_of
from engine import wiring
from engine.cli import output
from engine.cli.output import JSON, Arguments, Command, argument, say
from engine.settings import Settings
from engine.storage.database import Database

FINE = WHOLE | {Verdict.UNSEALED, Verdict.ARCHIVED}
SIZE = 60
NOT_ANCHORED = (
    "The population is on record, and its head is not anchored yet, so there is no seed. Once it is (a running engine does it within a"
    " minute; `affidavit audit seal --once` at once), run: affidavit audit sample --draw {}"
)


async def sample(settings: Settings, arguments: Arguments) -> int:
    """Draw a sample of the answered and refused questions of a period, which nobody can choose and anybody can draw again.

    The population goes on record first; the seed is the first head that is anchored after it. With --check, a sample's file is
    drawn again and compared, and the records of its period are verified.
    """
    if arguments.check:
        return await _check(settings, arguments)
    wish = Wish(arguments.since, arguments.until, tuple(arguments.strata), arguments.size)
    try:
        wish.check()
    except ValueError as wrong:
        say(str(wrong))
        return output.WRONG_USAGE
    async with wiring.open_existing_database(settings) as database:
        sample_id = arguments.draw or await wiring.state_population(settings, database, wish)
        drawn = await wiring.draw_when_anchored(settings, database, sample_id)
        if drawn is None:
            say(NOT_ANCHORED.format(sample_id))
            return output.FOUND_SOMETHING
        async with wiring.open_reviews(database) as reviews:
            await reviews.keep(drawn)
    _hand_over(drawn, arguments)
    return 0


def _hand_over(drawn: Sample, arguments: Arguments) -> None:
    if arguments.output:
        arguments.output.write_bytes(drawn.file())
    population = sum(counts_of(drawn.statement).values())
    say(
        f"Sample {drawn.sample_id}: {len(drawn.records)} of {population:,} questions, by {', '.join(drawn.statement['strata'])}."
        " Reviewers begin with: affidavit audit review next --as NAME"
    )
    if arguments.json:
        sys.stdout.write(drawn.file().decode())
    elif not arguments.output:
        rows = [
            {"log_id": str(log_id), "stratum": stratum_words(stratum)} for log_id, stratum in drawn.records
        ]
        output.print_rows(rows)


async def _check(settings: Settings, arguments: Arguments) -> int:
    drawn = read_sample(arguments.check.read_bytes())
    async with wiring.open_existing_database(settings) as database:
        doubts, others, report = await asyncio.to_thread(_checked, settings, database, drawn)
    if report.verdict not in FINE:
        doubts.append(f"The log of its period is {report.verdict}: see `affidavit audit verify`.")
    if arguments.json:
        found = {"sample": str(drawn.sample_id), "verdict": report.verdict, "doubts": doubts}
        print(json.dumps(found | {"others": [*map(str, others)]}))
    else:
        for doubt in doubts:
            print(f"FAILED  {doubt}")
        for other in others:
            print(f"OTHER POPULATION OF THESE DAYS  {other}")
        if not doubts:
            print(
                f"The sample {drawn.sample_id} is the one that the log gives. The log of its period is {report.verdict}."
            )
    return output.FOUND_SOMETHING if doubts else 0


def _checked(
    settings: Settings, database: Database, drawn: Sample
) -> tuple[list[str], list[OtherPopulation], Report]:
    wish = wish_of(drawn.statement)
    period = Period(wish.since or EVER.since, wish.until or EVER.until)
    with wiring.open_sampling(settings, database) as sampling:
        doubts, others, keys = sampling.doubts(drawn), sampling.others(drawn.sample_id), sampling.keys
    with wiring.open_evidence(settings, database, period) as evidence:
        return doubts, others, inspect(evidence, keys, output.progress())


async def show_next(settings: Settings, arguments: Arguments) -> int:
    """Show the next record of a sample that you have not judged; that you read it goes on record.

    Nobody sees another reviewer's verdict before both gave theirs. A lead also gets the records on which two reviewers differ.
    """
    async with _reviewing(settings, arguments) as (reviews, person):
        record = await reviews.next(person, arguments.sample)
    if record is None:
        say("There is nothing for you to judge in this sample.")
        return 0
    if arguments.json:
        print(json.dumps(output.plain(asdict(record)), default=str))
    else:
        _print_record(record, person)
    return 0


async def give(settings: Settings, arguments: Arguments) -> int:
    """Give your verdict on a record of a sample. It is sealed in the log, and stays: only an adjudication replaces it."""
    async with _reviewing(settings, arguments) as (reviews, person):
        await reviews.give(person, arguments.record, _marks(arguments), arguments.sample)
    say("The verdict is on record.")
    return 0


async def adjudicate(settings: Settings, arguments: Arguments) -> int:
    """Decide a record on which two reviewers differ, as a lead who is neither of them."""
    async with _reviewing(settings, arguments) as (reviews, person):
        await reviews.adjudicate(person, arguments.record, _marks(arguments), arguments.sample)
    say("The adjudication is on record.")
    return 0


async def report(settings: Settings, arguments: Arguments) -> int:
    """Say what people found: how far they agree, error rates with their intervals, and what each level of confidence was worth."""
    async with (
        wiring.open_existing_database(settings) as database,
        wiring.open_reviews(database) as reviews,
    ):
        found = (await reviews.queue(arguments.sample)).report()
    if arguments.html:
        from engine.evaluation.report import Markup, page

        arguments.html.write_text(page("Review of answers", Markup(drawing.html(found).text)), "utf-8")
    if arguments.json:
        print(json.dumps(found.as_json(), default=str))
    elif not arguments.html:
        print(output.visible(drawing.text(found)))
    return 0


@asynccontextmanager
async def _reviewing(settings: Settings, arguments: Arguments) -> AsyncIterator[tuple[Reviews, Person]]:
    async with (
        wiring.open_existing_database(settings) as database,
        wiring.open_reviews(database) as reviews,
    ):
        yield reviews, await wiring.person_named(database, arguments.person)


def _marks(arguments: Arguments) -> Marks:
    return Marks(**{item: getattr(arguments, item) for item in ITEMS}, comment=arguments.comment)


def _print_record(record: RecordToJudge, person: Person) -> None:
    """All of it is hostile: what would steer a terminal is written out."""
    output.print_rows([
        {
            "record": record.log_id, "asked": record.asked_at, "book": record.book_id or "", "question": record.question or "",
            **({"selected text": record.selected_text} if record.selected_text else {}),
            record.outcome: record.answer or "", **({"reason": record.reason} if record.reason else {}),
            **{f"quote {number}": _quote(each) for number, each in enumerate(record.citations, 1)},
            **{f"verdict of {each.reviewer}": _words(each.marks) for each in record.given},
        }
    ])  # fmt: skip
    command = "give" if record.task == "review" else "adjudicate"
    options = " ".join(f"--{item.replace('_', '-')} {'|'.join(allowed)}" for item, allowed in ITEMS.items())
    say(
        f"\naffidavit audit review {command} {record.log_id} --as {shlex.quote(person.name)} {options} --comment TEXT"
    )


def _quote(citation: Mapping[str, Any]) -> str:
    return f"{citation.get('excerpt', '')} ({citation.get('chapter') or ''}, {citation.get('section') or ''})"


def _words(marks: Marks) -> str:
    said = ", ".join(f"{item.replace('_', ' ')} {value}" for item, value in marks.scores.items())
    return f"{said}. {marks.comment}"


def _strata(text: str) -> list[str]:
    strata = text.split(",")
    if unknown := [name for name in strata if name not in STRATA]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no stratum. They are: {', '.join(STRATA)}")
    return strata


def _comment(text: str) -> str:
    if len(text) > COMMENT_CHARACTERS_MAX:
        raise argparse.ArgumentTypeError(f"a comment has at most {COMMENT_CHARACTERS_MAX} characters")
    return text


_SAMPLE = argument("--sample", type=output.query_id, metavar="ID", help="default: the newest sample")
_PERSON = argument(
    "--as", dest="person", required=True, metavar="NAME", help="your client name: its API keys give the role (scope review or lead)"
)  # fmt: skip
_RECORD = argument(
    "record", type=output.query_id, metavar="RECORD", help="as `affidavit audit review next` shows it"
)
_RUBRIC = tuple(
    argument(f"--{item.replace('_', '-')}", dest=item, required=True, choices=allowed, help=QUESTIONS[item])
    for item, allowed in ITEMS.items()
)
_COMMENT = argument("--comment", type=_comment, default="", metavar="TEXT", help="at most 500 characters")

REVIEW_COMMANDS: dict[str, Command] = {
    "audit sample": Command(
        sample, "affidavit audit sample --size 60 --seed-from head --strata reason,confidence,book --from 2026-11-01 -o sample.json",
        (
            argument("--size", type=int, default=SIZE, metavar="N", help="how many records (default: 60)"),
            argument("--seed-from", choices=("head",), default="head", help="the first head that is anchored after the population went on record"),
            argument("--strata", type=_strata, default=[*STRATA], metavar="NAMES", help="comma-separated: reason, confidence, book (default: all three)"),
            output.FROM, output.TO,
            argument("-o", dest="output", type=Path, metavar="FILE", help="write the sample's file, with which anybody can draw it again"),
            argument("--draw", type=output.query_id, metavar="ID", help="draw the sample whose population is on record already"),
            argument("--check", type=Path, metavar="FILE", help="draw the sample of this file again and compare"),
            JSON,
        ),
    ),
    "audit review next": Command(
        show_next, "affidavit audit review next --as reviewer-1", (_PERSON, _SAMPLE, JSON),
    ),
    "audit review give": Command(
        give, "affidavit audit review give 0190c2a4-… --as reviewer-1 --grounded yes --answers partly --harmful no --personal-data no",
        (_RECORD, _PERSON, *_RUBRIC, _COMMENT, _SAMPLE),
    ),
    "audit review adjudicate": Command(
        adjudicate, "affidavit audit review adjudicate 0190c2a4-… --as lead-1 --grounded yes --answers yes --harmful no --personal-data no",
        (_RECORD, _PERSON, *_RUBRIC, _COMMENT, _SAMPLE),
    ),
    "audit review report": Command(
        report, "affidavit audit review report --html review.html",
        (_SAMPLE, argument("--html", type=Path, metavar="FILE", help="write the report as one HTML file"), JSON),
    ),
}  # fmt: skip
