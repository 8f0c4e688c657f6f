"""Handlers of the commands that measure: `eval` a labelled set, `calibrate` a book."""

import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic import SecretStr

from engine import wiring
from engine.answer import ASK, Asked
from engine.cli.output import (
    FOUND_SOMETHING,
    JSON,
    Arguments,
    Command,
    argument,
    book_id,
    print_rows,
    progress,
    say,
)  # fmt: skip
from engine.evaluation import answers, certify, evaluate, evaluation_report, labelled_set
from engine.house import House
from engine.models import Answer, Client, Question
from engine.ports import NullExchange
from engine.settings import Settings
from engine.terminal import known_books
from ingest.read.document import CONTENT_FILE

EVALUATED_BOOK = "labelled-set"


async def evaluation(settings: Settings, arguments: Arguments) -> int:
    """Measure retrieval, gate and citations on a labelled set, or, with --docs, the answers to labelled questions."""
    if arguments.report:
        arguments.report.touch()  # fails now if the file cannot be written, not after the work
    if arguments.docs:
        return await _evaluate_answers(settings, arguments)
    labelled = labelled_set.read(arguments.labelled, arguments.out_of_scope)
    with tempfile.TemporaryDirectory(prefix="affidavit-eval-") as folder:
        content = Path(folder, CONTENT_FILE)
        content.write_bytes(labelled_set.book(labelled))
        async with _temporary_house(settings, [content], labelled.name) as house:
            found = await _evaluated(settings, house, labelled, arguments)
    if arguments.report:
        arguments.report.write_text(evaluation_report.page(found), "utf-8")
    if arguments.json:
        print(json.dumps(asdict(found)))
    else:
        print(evaluation_report.about(found))
        print_rows(evaluation_report.rows(found.figures))
        if found.wrong:
            print_rows(evaluation_report.wrong_counts(found.wrong))
    for failure in found.failures:
        say(f"  not measured: {failure['question']}: {failure['error']}")
    return FOUND_SOMETHING if found.failures else 0


async def calibration(settings: Settings, arguments: Arguments) -> int:
    """Calibrate a book's scores with labelled questions, and put the calibration in force."""
    if arguments.report:
        arguments.report.touch()  # fails now if the file cannot be written, not after the work
    async with wiring.open_existing_database(settings, say) as database:
        async with wiring.open_registry(database) as registry:
            await known_books.check(registry, arguments.book)
        async with wiring.open_house(settings, database) as house:
            generation = await house.library.live(arguments.book)
            certified = await certify.certificate(
                arguments.questions, house.engine.retriever, generation, wiring.gate_of(settings), progress()
            )
        async with wiring.open_registry(database, "affidavit_owner") as registry:
            await registry.certify(arguments.book, certified)
    if arguments.report:
        arguments.report.write_text(certify.page(certified, arguments.book), "utf-8")
    if arguments.json:
        print(json.dumps(asdict(certified)))
    else:
        print(certify.about(certified))
        print_rows(certify.table(certified))
    return 0


def _embedded(settings: Settings, data_dir: Path) -> Settings:
    """The same settings with a temporary database and index, so that a labelled set cannot touch a real book."""
    own = {
        "data_dir": data_dir,
        "database": settings.database.model_copy(update={"url": SecretStr("")}),
        "providers": settings.providers.model_copy(update={"index": "edge", "limits": "memory"}),
        "books": settings.books.model_copy(update={"default": EVALUATED_BOOK}),
    }
    return settings.model_copy(update=own)


@asynccontextmanager
async def _temporary_house(settings: Settings, paths: Sequence[Path], title: str) -> AsyncIterator[House]:
    """An engine over a copy of the book in a temporary data folder."""
    with tempfile.TemporaryDirectory(prefix="affidavit-eval-", ignore_cleanup_errors=True) as folder:
        own = _embedded(settings, Path(folder))
        async with wiring.open_database(own, say) as database:
            async with wiring.open_ingest(own, database, progress()) as pipeline:
                result = await pipeline.run(paths, EVALUATED_BOOK, title)
            if result.errors:
                raise labelled_set.LabelsError(
                    f"The book cannot be ingested: {result.errors[0]['file']} {result.errors[0]['error']}"
                )
            async with wiring.open_house(own, database) as house:
                try:
                    yield house
                finally:  # the index worker ends a little later, and must not write into a folder that is deleted by then
                    generation = await house.library.live(EVALUATED_BOOK)
                    await house.index.drop(generation.generation_id)


async def _evaluated(
    settings: Settings, house: House, labelled: labelled_set.LabelledSet, arguments: Arguments
) -> evaluate.Evaluation:
    library, engine = house.library, house.engine
    names = sorted(await library.live_chunk_ids(EVALUATED_BOOK))
    subject = evaluate.Subject(
        retriever=engine.retriever,
        generator=None if arguments.retrieval_only else engine.generator,
        generation=await library.live(EVALUATED_BOOK),
        passages=list((await library.passages(names)).values()),
        threshold=settings.retrieval.threshold,
        top_k=settings.retrieval.top_k,
        confidence=engine.release,
    )
    return await evaluate.evaluate(labelled, subject, progress())


async def _evaluate_answers(settings: Settings, arguments: Arguments) -> int:
    labelled = answers.read(arguments.labelled)
    async with _temporary_house(settings, [arguments.docs], arguments.docs.name) as house:
        ask = partial(_ask, house, settings.retrieval.top_k)
        found = await answers.evaluate(labelled, ask, house.engine.generator.name, progress())
    if arguments.report:
        arguments.report.write_text(evaluation_report.answers_page(found), "utf-8")
    if arguments.json:
        print(json.dumps(asdict(found)))
    else:
        print_rows(evaluation_report.rows(found.figures))
        if found.wrong:
            print_rows(evaluation_report.wrong_counts(found.wrong))
        print_rows(
            evaluation_report.wrong_rows(found), empty="Every question was answered or refused as labelled."
        )
    return FOUND_SOMETHING if any(trial.outcome == "failed" for trial in found.trials) else 0


async def _ask(house: House, top_k: int, text: str) -> tuple[Answer, str]:
    """The answer, and the text of the passages that were found."""
    engine = house.engine

    async def read() -> Question:
        return Question(text, EVALUATED_BOOK, top_k)

    operator = Client("operator", None, ASK)
    answer = await engine.answer(
        Asked("affidavit eval", str(engine.new_id()), NullExchange(read), operator=operator)
    )
    returned = cast("list[dict[str, Any]]", answer.trail.chunks_returned or [])
    found = [item["chunk_id"] for item in returned]
    passages = await house.library.passages(found)
    return answer, "\n".join(passage.text for passage in passages.values())


EVALUATION_COMMANDS: dict[str, Command] = {
    "eval": Command(
        evaluation, "affidavit eval labelled/ --report report.html",
        (
            argument(
                "labelled", type=Path, metavar="DIR",
                help="with corpus.jsonl, queries.jsonl and qrels.tsv; with --docs a file of labelled questions",
            ),
            argument(
                "--docs", type=Path, metavar="PATH",
                help="the pages of a book: measures the answers to questions, one per line:"
                ' {"question": …, "kind": "answerable", "must_quote": [["one phrase", "or this one"], ["and this one"]]};'
                ' the kinds "attribute_missing" and "outside" must be refused',
            ),
            argument("--out-of-scope", type=Path, metavar="FILE", help="questions that no passage of the set answers"),
            argument("--retrieval-only", action="store_true", help="measure the search without writing answers"),
            JSON,
            argument("--report", type=Path, metavar="FILE.html", help="figures, curves and the worst questions"),
        ),
    ),
    "calibrate": Command(
        calibration, "affidavit calibrate --book robotics --questions questions.jsonl --report report.html",
        (
            argument("--book", required=True, type=book_id, metavar="ID", help="the book to calibrate"),
            argument(
                "--questions", required=True, type=Path, metavar="FILE.jsonl",
                help='one question per line: {"text": …, "answerable": true or false}, with "kind": "near_miss" for'
                " questions that only sound like the book",
            ),
            argument("--report", type=Path, metavar="FILE.html", help="the curve, the scores and the table"),
            JSON,
        ),
    ),
}  # fmt: skip
