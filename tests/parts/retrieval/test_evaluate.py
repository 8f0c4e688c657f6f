"""The figures against hand-counted cases, the labels checked line by line, and a whole run on our own tiny set."""

import asyncio
import json
import math
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, cast
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import settings as settings_file
from engine.cli import evaluation_commands, main
from engine.errors import IndexUnavailableError
from engine.evaluation import evaluate, evaluation_report, figures, labelled_set, report, targets
from engine.evaluation.evaluate import Subject
from engine.evaluation.figures import Figure
from engine.evaluation.labelled_set import AnswerSpan, CorpusDocument, LabelledSet, LabelsError, Query
from engine.evaluation.reliability import ReliabilityBin
from engine.evaluation.targets import Extent, Marking
from engine.grounding import cite
from engine.models import (
    Calibration,
    Candidate,
    Excerpt,
    Generation,
    Lexicon,
    Passage,
    Question,
    Retrieved,
    RetrievedPassage,
)
from engine.retrieval import calibrate
from engine.retrieval.retrieve import Retriever, Search
from ingest import split
from ingest.read import export
from ingest.read.document import CONTENT_FILE
from tests.build import hostile_text, passage, steady
from tests.conftest import ROOT

TINY = ROOT / "tests/data/tiny_eval"
NOTHING: set[int] = set()


# --- Figures


def test_recall_counts_each_target_once() -> None:
    assert targets.recall([{0}, NOTHING, {0, 1}], 4) == 0.5
    assert targets.recall([NOTHING, NOTHING], 3) == 0.0
    assert targets.recall([], 1) == 0.0


def test_reciprocal_rank_is_of_the_first_hit() -> None:
    assert targets.reciprocal_rank([NOTHING, NOTHING, {1}, {0}]) == pytest.approx(1 / 3)
    assert targets.reciprocal_rank([NOTHING] * 10) == 0.0
    assert targets.reciprocal_rank([]) == 0.0


def test_ndcg_of_one_target_is_the_discount_of_its_rank() -> None:
    assert targets.ndcg([{0}], [{0}]) == 1.0
    assert targets.ndcg([NOTHING, NOTHING, {0}], [{0}]) == pytest.approx(1 / math.log2(4))
    assert targets.ndcg([NOTHING] * 10, [{0}]) == 0.0


def test_ndcg_of_several_targets() -> None:
    best = 1 + 1 / math.log2(3)
    assert targets.ndcg([{0}, {1}], [{0}, {1}]) == 1.0
    assert targets.ndcg([NOTHING, {1}, {0}], [{0}, {1}]) == pytest.approx((1 / math.log2(3) + 0.5) / best)


def test_a_passage_that_holds_two_targets_is_the_best_order_alone() -> None:
    """Seen red with an ideal of one target a rank: the perfect order of such a book came out above 1."""
    book = [{0}, {0, 1}, {1}]
    assert targets.ndcg([{0, 1}, {0}, {1}], book) == 1.0
    assert targets.ndcg([{0}, {1}, {0, 1}], book) == pytest.approx((1 + 1 / math.log2(3)) / 2)


def test_a_second_hit_of_the_same_target_is_worth_nothing() -> None:
    assert targets.ndcg([{0}, {0}, {0}], [{0}, {0}, {0}]) == 1.0


def test_a_target_that_no_passage_holds_is_missed_by_recall_and_zero_in_ndcg() -> None:
    assert targets.ndcg([NOTHING], []) == 0.0


def test_auroc_counts_a_tie_half() -> None:
    def auroc(higher: Sequence[float], lower: Sequence[float]) -> float:
        return calibrate.auroc(np.asarray(higher), np.asarray(lower))

    assert auroc([0.9, 0.8], [0.1, 0.2]) == 1.0
    assert auroc([0.1], [0.9]) == 0.0
    assert auroc([0.5, 0.5], [0.5, 0.5, 0.5]) == 0.5
    assert auroc([0.9, 0.5, 0.1], [0.5, 0.3]) == pytest.approx((2 + 1.5 + 0) / 6)


def test_the_interval_is_the_same_every_time_and_holds_the_value() -> None:
    values = np.random.default_rng(7).random(200).tolist()
    first, again = figures.mean_figure(values), figures.mean_figure(values)
    assert first == again
    assert first.low is not None and first.value is not None and first.high is not None
    assert first.low < first.value < first.high
    assert first.value == pytest.approx(sum(values) / 200)
    assert figures.mean_figure([1.0] * 50) == Figure(1.0, 1.0, 1.0, 50)


def test_the_interval_is_as_wide_as_theory_says() -> None:
    """Of a coin thrown 400 times: 1.96 standard errors of .025 to either side."""
    figure = figures.mean_figure([0.0, 1.0] * 200)
    assert figure.low == pytest.approx(0.451, abs=0.006)
    assert figure.high == pytest.approx(0.549, abs=0.006)


def test_without_questions_there_is_no_figure() -> None:
    assert figures.mean_figure([]) == Figure(None, None, None, 0)
    assert figures.auroc_figure([0.5], []) == Figure(None, None, None, 1)
    assert figures.auroc_figure([], []) == Figure(None, None, None, 0)
    assert report.curve([], [0.1]) == report.curve([0.1], []) == []


def test_the_curve_counts_a_score_at_the_gate_as_through() -> None:
    points = {point.threshold: point for point in report.curve([0.6, 0.8], [0.2, 0.6, 0.7, 0.1])}
    assert len(points) == 101
    assert (points[0.6].kept, points[0.6].let_through) == (1.0, 0.5)
    assert (points[0.61].kept, points[0.61].let_through) == (0.5, 0.25)
    assert (points[0.0].kept, points[0.0].let_through) == (1.0, 1.0)
    assert (points[1.0].kept, points[1.0].let_through) == (0.0, 0.0)


# --- Where things stand

LONG = "One two three. Two and two make four.\n\nA robot has two legs.  Two and two make four."


def labelled(text: str, *spans: tuple[int, int], answerable: bool = True) -> LabelledSet:
    where = [AnswerSpan(doc="page", start=start, end=end) for start, end in spans]
    query = Query(_id="q", text="How many?", answerable=answerable, spans=where)
    documents = {"page": CorpusDocument(_id="page", text=text)}
    return LabelledSet("set", documents, {"q": query}, {"q": {"page"}}, {})


SENTENCES = ("One two three.", "Two and two make four.", "A robot has two legs.", "Two and two make four.")


def cut(*runs: tuple[int, int]) -> list[Passage]:
    """The passages of `LONG` that hold these sentences."""
    return [
        passage(
            *SENTENCES[start:end], chunk_id=f"c{number}", filename="page", chunk_index=number, start_sentence=start,
            end_sentence=end - 1,
        )
        for number, (start, end) in enumerate(runs)
    ]  # fmt: skip


PARTS = cut((0, 1), (1, 2), (2, 3), (3, 4))


def ranks(
    text: str, parts: Sequence[Passage], ranking: Sequence[str], *spans: tuple[int, int]
) -> dict[str, float]:
    of = labelled(text, *spans)
    return Marking(of, parts).ranks(of.queries["q"], ranking)


def test_a_repeated_word_is_hit_only_where_it_is_labelled() -> None:
    """Seen red with spans looked up by their words: the first "two" of the page was the right one."""
    third = LONG.index("two legs")
    for found, hit in (("c0", 0.0), ("c1", 0.0), ("c2", 1.0), ("c3", 0.0)):
        assert ranks(LONG, PARTS, [found], (third, third + 3))["recall@5"] == hit


def test_a_passage_whose_words_come_twice_is_not_taken_for_the_other() -> None:
    """Seen red with passages looked up by their words."""
    last = LONG.rindex("Two and two")
    assert ranks(LONG, PARTS, ["c1"], (last, last + 11))["recall@5"] == 0.0
    assert ranks(LONG, PARTS, ["c3"], (last, last + 11))["recall@5"] == 1.0


def test_passages_that_overlap_have_their_own_places() -> None:
    parts = cut((0, 2), (1, 3), (3, 4))
    start = LONG.index("A robot")
    assert ranks(LONG, parts, ["c0", "c1"], (start, start + 7))["mrr@10"] == 0.5


def test_a_last_passage_may_begin_with_the_one_before() -> None:
    assert ranks(LONG, cut((0, 1), (0, 4)), ["c1"], (0, 3))["recall@5"] == 1.0


def test_a_span_across_a_border_is_held_by_nobody_and_counted() -> None:
    of = labelled(LONG, (4, 20))
    marking = Marking(of, PARTS)
    assert marking.unreachable(of.queries["q"]) == 1
    assert ranks(LONG, PARTS, ["c0", "c1"], (4, 20)) == {"recall@5": 0.0, "mrr@10": 0.0, "ndcg@10": 0.0}


def test_a_span_may_end_in_white_space() -> None:
    start = LONG.index("legs.")
    assert ranks(LONG, PARTS, ["c2"], (start, start + 7))["recall@5"] == 1.0


def test_targets_are_documents_where_these_are_short() -> None:
    """The span lies in the second passage; the first is of the right document, and that is all that is asked."""
    of = labelled("One two three. Two and two make four.", (15, 18))
    of.documents["other"] = CorpusDocument(_id="other", text="Legs.")  # type: ignore[index]
    parts = [
        *cut((0, 1), (1, 2)),
        passage("Legs.", chunk_id="x", filename="other"),
    ]
    marking = Marking(of, parts)
    assert not marking.by_span
    assert marking.ranks(of.queries["q"], ["x", "c0", "c1"]) == pytest.approx(
        {"recall@5": 1.0, "mrr@10": 0.5, "ndcg@10": 1 / math.log2(3)}
    )


def test_what_comes_after_the_tenth_does_not_count() -> None:
    of = labelled(LONG, (0, 3))
    assert Marking(of, PARTS).ranks(of.queries["q"], ["c2"] * 10 + ["c0"])["mrr@10"] == 0.0


def test_a_question_without_an_answer_has_no_ranks() -> None:
    of = labelled(LONG, answerable=False)
    assert Marking(of, PARTS).ranks(of.queries["q"], ["c0"]) == {}


@steady
@given(st.lists(hostile_text, min_size=1, max_size=4).map("\n\n".join))
def test_reading_changes_nothing_but_white_space(text: str) -> None:
    """Else counting letters would not lead to a place. The database's own limits are another test's."""
    of = labelled("".join(character for character in text if character >= " " or character.isspace()))
    documents = export.read(labelled_set.book(of), PurePosixPath(CONTENT_FILE))
    size = split.Size(12, 0.2, 4)
    parts = [part for page in documents for part in split.passages(page, "book", size, len)]
    letters = "".join(of.documents["page"].text.split())
    for part in parts:
        place = targets._places(parts)[part.chunk_id]
        assert letters[place.start : place.end] == "".join(part.text.split())


def excerpt(chunk_id: str, start: int, end: int) -> Excerpt:
    return Excerpt(1, chunk_id, "", "", "page", "", "", "", start, end, 0.9)


def test_an_excerpt_hits_a_span_at_its_place_only() -> None:
    start = LONG.index("two legs")
    of = labelled(LONG, (start, start + 8))
    marking = Marking(of, PARTS)
    query = of.queries["q"]
    assert marking.cited(query, [excerpt("c1", 0, 22)]) == (0.0, 0.0)
    assert marking.cited(query, [excerpt("c2", 0, 15)]) == (1.0, 3 / 7)  # "two" of "twolegs"
    assert marking.cited(query, [excerpt("c2", 0, 15), excerpt("c2", 8, 21)]) == (1.0, 1.0)
    assert marking.cited(query, []) is None


def test_overlap_counts_a_letter_once() -> None:
    spans = [Extent("a", 0, 10), Extent("b", 0, 10)]
    assert targets.overlap([Extent("a", 5, 20), Extent("a", 5, 8)], spans) == 0.25


# --- Labels


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "set"))


@pytest.mark.parametrize(
    ("file", "line", "says"),
    [
        ("corpus.jsonl", "not JSON", "corpus.jsonl:13: Invalid JSON"),
        ("corpus.jsonl", '{"_id": "x"}', "corpus.jsonl:13: text: Field required"),
        ("corpus.jsonl", '{"_id": "tides", "text": "a"}', "corpus.jsonl:13: the _id tides is used twice"),
        ("queries.jsonl", '{"_id": "x", "text": "Why?"}', "queries.jsonl:21: answerable: Field required"),
        ("queries.jsonl", '{"_id": "x", "text": "Why?", "answerable": true}', "x is answerable, but neither"),
        (
            "queries.jsonl",
            '{"_id": "x", "text": "Why?", "answerable": true, "spans": [{"doc": "y", "start": 0, "end": 1}]}',
            "queries.jsonl:21: a span names the document y, which is not in corpus.jsonl",
        ),
        (
            "queries.jsonl",
            '{"_id":"x","text":"Why?","answerable":true,"spans":[{"doc":"tides","start":0,"end":3,"text":"Tide"}]}',
            "queries.jsonl:21: a span does not match its document: tides has 'The' from 0 to 3",
        ),
        ("qrels.tsv", "q01 tides 1", "qrels.tsv:17: a line needs three columns, separated by tabs"),
        ("qrels.tsv", "q01\ttides\tvery", "qrels.tsv:17: a line needs three columns, separated by tabs"),
        ("qrels.tsv", "q01\tnowhere\t1", "qrels.tsv:17: q01 or nowhere is not in"),
        ("out_of_scope.jsonl", "[]", "out_of_scope.jsonl:6: "),
    ],
)
def test_a_malformed_line_is_named(copied: Path, file: str, line: str, says: str) -> None:
    with (copied / file).open("a") as opened:
        opened.write(f"{line}\n")
    with pytest.raises(LabelsError, match=re.escape(says)):
        labelled_set.read(copied, copied / "out_of_scope.jsonl")


def test_bytes_that_are_no_text_are_named(copied: Path) -> None:
    for file in ("corpus.jsonl", "qrels.tsv"):
        before = (copied / file).read_bytes()
        (copied / file).write_bytes(before + b"\xff\xfe\t1\t1\n")
        with pytest.raises(LabelsError, match=rf"{file}:1\d: "):
            labelled_set.read(copied)
        (copied / file).write_bytes(before)


def test_windows_line_ends_and_blank_lines_are_read(copied: Path) -> None:
    for file in copied.glob("*.*l*"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\r\n")
    assert labelled_set.read(copied).queries == labelled_set.read(TINY).queries


def test_a_score_of_zero_is_not_relevant(copied: Path) -> None:
    with (copied / "qrels.tsv").open("a") as opened:
        opened.write("q01\tknots\t0\n")
    assert labelled_set.read(copied).relevant["q01"] == {"tides"}


def test_a_folder_without_a_corpus_says_what_to_do(copied: Path) -> None:
    (copied / "corpus.jsonl").unlink()
    with pytest.raises(LabelsError, match=r"affidavit eval SET --out-of-scope .*queries\.jsonl"):
        labelled_set.read(copied)


# --- A whole run


def run(data_dir: Path, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    given = main.parser().parse_args(["eval", *map(str, arguments)])
    code = asyncio.run(evaluation_commands.evaluation(settings_file.load({}, data_dir=data_dir), given))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.campaign
def test_a_whole_run_prints_one_object_and_writes_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    code, out, err = run(
        tmp_path / "real",
        capsys,
        TINY,
        "--out-of-scope",
        TINY / "out_of_scope.jsonl",
        "--json",
        "--report",
        page,
    )
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    assert (found["documents"], found["passages"], found["targets"]) == (12, 12, "documents")
    assert found["questions"] == {"answerable": 15, "unanswerable": 5, "out_of_scope": 5}
    figures = found["figures"]
    assert set(figures) == {
        "recall@5", "mrr@10", "ndcg@10", "ndcg@10_dense", "ndcg@10_bm25", "calibration_error", "kept", "let_through_unanswerable", "auroc_unanswerable",
        "let_through_out_of_scope", "auroc_out_of_scope", "answered_answerable", "answered_unanswerable",
        "answered_out_of_scope", "citation_hit", "excerpt_overlap",
    }  # fmt: skip
    assert figures["recall@5"]["value"] >= 0.9
    assert figures["auroc_out_of_scope"]["value"] >= 0.9
    assert figures["citation_hit"]["value"] >= 0.5
    assert figures["answered_answerable"]["value"] <= figures["kept"]["value"]
    assert "Asking 25/25" in err
    assert not (tmp_path / "real").exists()  # the user's own data folder is not touched
    written = page.read_text()
    assert ET.fromstring(written).tag == "html"
    for name, figure in figures.items():
        assert f"{figure['value']:.3f}" in written, name
    assert written.count("<svg") == 3
    assert sum(found["wrong"].values()) == sum(
        figures[name]["value"] * figures[name]["questions"]
        for name in ("answered_unanswerable", "answered_out_of_scope")
    ) + sum(count for what, count in found["wrong"].items() if "though" not in what)
    assert not re.findall(r"<script|(?:src|href)=|url\(", written)


@pytest.mark.campaign
def test_retrieval_only_asks_no_generator_and_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(tmp_path, capsys, TINY, "--retrieval-only")
    assert code == 0
    assert "generator not asked" in out
    assert [line.split("  ")[0] for line in out.splitlines()[1:]] == [
        "figure", "recall@5", "MRR@10", "nDCG@10", "nDCG@10, dense", "nDCG@10, bm25", "kept by the gate", "let through, unanswerable",
        "AUROC, unanswerable",
    ]  # fmt: skip


def test_a_report_that_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FileNotFoundError):
        run(tmp_path, capsys, TINY, "--report", tmp_path / "nowhere" / "report.html")
    assert "PostgreSQL" not in capsys.readouterr().err


@dataclass(frozen=True)
class Stub:
    """A retriever that finds one passage for every question, but for one question nothing works."""

    found: RetrievedPassage
    fails_on: str

    async def retrieve(self, question: Question, generation: Generation) -> Retrieved:
        if question.text == self.fails_on:
            raise IndexUnavailableError
        return Retrieved((self.found,), self.found.candidate.score, 1, question.text)

    async def prepare(self, query: str, generation: Generation) -> Search:
        return Search(generation, [query], np.zeros(1, np.float32), {})

    async def candidates(self, _: Search) -> list[Candidate]:
        return [self.found.candidate]


async def test_a_question_that_fails_is_named_and_left_out_of_the_figures() -> None:
    """Seen red with the failed question counted as a miss."""
    of = labelled("One two three.", (4, 7))
    queries = dict(of.queries) | {"f": Query(_id="f", text="Fails?", answerable=True)}
    part = cut((0, 1))[0]
    candidate = Candidate(part.chunk_id, 0.9, 0.9, 9.0, 0.9, 0.9, 0.9, 0.9, None)
    calibration = Calibration("shipped", "shipped", "minilm", 384, "attainment", (), ())
    generation = Generation(UUID(int=0), "book", "minilm", 384, calibration, Lexicon({}, 1, 3.0))
    subject = Subject(
        cast("Retriever", Stub(RetrievedPassage(part, candidate), "Fails?")),
        None,
        generation,
        [part],
        0.6,
        5,
        lambda sentences, draft, *_: cite.released(
            sentences, draft.confidence or 0, weights=(0.6, 0.4), levels=(0.85, 0.7)
        ),
    )
    found = await evaluate.evaluate(
        replace(of, queries=queries, relevant={"q": {"page"}, "f": {"page"}}), subject, lambda *_: None
    )
    assert [failure["question"] for failure in found.failures] == ["f"]
    assert found.figures["recall@5"] == Figure(1.0, 1.0, 1.0, 1)


# --- The page

HOSTILE = """</td><script>alert("'&")</script>"""


def test_a_hostile_title_stays_text() -> None:
    wrong = evaluate.Mistake(HOSTILE, HOSTILE, HOSTILE, 0.5, HOSTILE)
    found = evaluate.Evaluation(
        name=HOSTILE, documents=1, passages=1, questions={"answerable": 1}, targets="documents",
        unreachable_targets=0, embedder=HOSTILE, generator=HOSTILE, calibration_id=HOSTILE, calibration_kind=HOSTILE,
        threshold=0.6, figures={"recall@5": Figure(None, None, None, 0)},
        curves={"unanswerable": report.curve([0.7], [0.4])}, scores={"answerable": [0.7], "unanswerable": [0.4]},
        wrong={HOSTILE: 1}, reliability=[ReliabilityBin(0.5, 0.5, 1)],
        missed=[wrong], let_through=[wrong], failures=[{"question": HOSTILE, "error": HOSTILE}],
    )  # fmt: skip
    written = evaluation_report.page(found)
    assert "<script" not in written
    tree = ET.fromstring(written)
    assert [cell.text for cell in tree.iter("td")].count(HOSTILE) == 11
    assert tree.findtext("head/title") == f"Evaluation: {HOSTILE}"


def test_a_table_tells_numbers_from_words() -> None:
    written = report.table(["Name", "Count", "Share"], [["a", 1200, 0.5]])
    assert '<td>a</td><td class="number">1,200</td><td class="number">0.500</td>' in written
