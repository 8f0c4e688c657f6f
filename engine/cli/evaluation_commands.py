"""Handlers of the commands that measure: `eval` a labelled set, `calibrate` a book."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from pydantic import SecretStr

from engine import wiring
from engine.cli.output import FOUND_SOMETHING, JSON, Arguments, Command, argument, print_rows, progress, say
from engine.evaluation import certify, evaluate, evaluation_report, labelled_set
from engine.settings import Settings
from ingest.read.export import FILENAME as CONTENT_FILE

EVALUATED_BOOK = "labelled-set"


async def evaluation(settings: Settings, arguments: Arguments) -> int:
    """Measure retrieval, gate and citations on a labelled set, in a temporary data folder."""
    labelled = labelled_set.read(arguments.folder, arguments.out_of_scope)
    if arguments.report:
        arguments.report.touch()  # fails now if the file cannot be written, not after the work
    with tempfile.TemporaryDirectory(prefix="affidavit-eval-", ignore_cleanup_errors=True) as folder:
        content = Path(folder, "book", CONTENT_FILE)
        content.parent.mkdir()
        content.write_bytes(labelled_set.book(labelled))
        found = await _evaluated(_embedded(settings, Path(folder, "data")), labelled, content, arguments)
    if arguments.report:
        arguments.report.write_text(evaluation_report.page(found), "utf-8")
    if arguments.json:
        print(json.dumps(asdict(found)))
    else:
        print(evaluation_report.about(found))
        print_rows(evaluation_report.rows(found))
    for failure in found.failures:
        say(f"  not measured: {failure['question']}: {failure['error']}")
    return FOUND_SOMETHING if found.failures else 0


async def calibration(settings: Settings, arguments: Arguments) -> int:
    """Calibrate a book's scores with labelled questions, and put the calibration in force."""
    if arguments.report:
        arguments.report.touch()  # fails now if the file cannot be written, not after the work
    async with wiring.open_database(settings, say) as database:
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


async def _evaluated(
    settings: Settings, labelled: labelled_set.LabelledSet, content: Path, arguments: Arguments
) -> evaluate.Evaluation:
    async with wiring.open_database(settings, say) as database:
        async with wiring.open_ingest(settings, database, progress()) as pipeline:
            result = await pipeline.run([content], EVALUATED_BOOK, labelled.name)
        if result.errors:
            raise labelled_set.LabelsError(f"The corpus cannot be ingested: {result.errors[0]['error']}")
        async with wiring.open_house(settings, database) as house:
            library, engine = house.library, house.engine
            generation = await library.live(EVALUATED_BOOK)
            names = sorted((await library.live_content(EVALUATED_BOOK)).chunk_ids)
            subject = evaluate.Subject(
                retriever=engine.retriever,
                generator=None if arguments.retrieval_only else engine.generator,
                generation=generation,
                passages=list((await library.passages(names)).values()),
                threshold=settings.retrieval.threshold,
                top_k=settings.retrieval.top_k,
            )
            try:
                return await evaluate.evaluate(labelled, subject, progress())
            finally:  # the index worker ends a little later, and must not write into a folder that is deleted by then
                await house.index.drop(generation.generation_id)


EVALUATION_COMMANDS: dict[str, Command] = {
    "eval": Command(
        evaluation, "affidavit eval labelled/ --report report.html",
        (
            argument("folder", type=Path, metavar="DIR", help="with corpus.jsonl, queries.jsonl and qrels.tsv"),
            argument("--out-of-scope", type=Path, metavar="FILE", help="questions that no passage of the set answers"),
            argument("--retrieval-only", action="store_true", help="measure the search without writing answers"),
            JSON,
            argument("--report", type=Path, metavar="FILE.html", help="figures, curves and the worst questions"),
        ),
    ),
    "calibrate": Command(
        calibration, "affidavit calibrate --book robotics --questions questions.jsonl --report report.html",
        (
            argument("--book", required=True, metavar="ID", help="the book to calibrate"),
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
