"""The presentation of an evaluation: a table for the terminal and a page of HTML. Pure."""

from collections.abc import Mapping, Sequence

from engine.evaluation import answers, reliability, report
from engine.evaluation.answers import AnswerEvaluation
from engine.evaluation.evaluate import Evaluation, Mistake
from engine.evaluation.figures import Figure

MEANING = {
    "recall@5": ("recall@5", "the share of a question's targets that the first five passages hit"),
    "mrr@10": ("MRR@10", "1 / the rank of the first passage that hits a target"),
    "ndcg@10": ("nDCG@10", "each target counts where it is hit first, by 1 / log2(1 + rank); as a share of what the best order gives"),
    "kept": ("kept by the gate", "the share of the answerable questions whose best score reaches the gate"),
    "let_through": ("let through", "the share of these questions whose best score reaches the gate"),
    "auroc": ("AUROC", "how often an answerable question scores higher than one of these; a tie counts half"),
    "answered": ("answered", "the share of these questions that leave generation and verification with an answer"),
    "citation_hit": ("citation hit", "of the answered questions with labelled spans, those with an excerpt that overlaps one"),
    "excerpt_overlap": ("excerpt overlap", "of the same questions, the share of the letters of their spans that the excerpts cover"),
    "right": ("right", "the share of these that quote what they must"),
    "refused": ("refused", "the share of these questions that are refused"),
    "calibration_error": ("calibration error", "the mean distance between an answer's confidence and the share that is right (ECE)"),
}  # fmt: skip


def rows(figures: Mapping[str, Figure]) -> list[dict[str, str]]:
    """The figures as a table for the terminal."""
    return [
        {
            "figure": _named(name)[0],
            "value": "-" if figure.value is None else f"{figure.value:.3f}",
            "95 % interval": _interval(figure),
            "questions": f"{figure.questions:,}",
        }
        for name, figure in figures.items()
    ]


def page(evaluation: Evaluation) -> str:
    """The report as one HTML file."""
    return report.page(
        f"Evaluation: {evaluation.name}",
        report.paragraph(about(evaluation)),
        report.heading("Figures"),
        _figure_table(evaluation.figures),
        *reliability.diagram(evaluation.reliability),
        *_wrong_table(evaluation.wrong),
        *(report.gate(evaluation.curves, evaluation.scores, evaluation.threshold) if evaluation.curves else ()),
        *_mistakes("Answerable, and missed", "Nothing was missed.", evaluation.missed),
        *(_mistakes("Not in the book, and let through", "Nothing was let through.", evaluation.let_through)
          if evaluation.curves else ()),
        *_failures(evaluation.failures),
    )  # fmt: skip


def answers_page(found: AnswerEvaluation) -> str:
    """The report on labelled answers as one HTML file."""
    kinds = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in found.questions.items())
    listed = [list(row.values()) for row in wrong_rows(found)]
    return report.page(
        "Evaluation of answers",
        report.paragraph(f"Questions: {kinds}. Generator {found.generator}."),
        report.heading("Figures"),
        _figure_table(found.figures),
        *reliability.diagram(found.reliability),
        *_wrong_table(found.wrong),
        report.heading("Wrong"),
        report.table(["Question", "Kind", "Outcome", "Answer"], listed)
        if listed
        else report.paragraph("Every question was answered or refused as labelled."),
    )


def wrong_rows(found: AnswerEvaluation) -> list[dict[str, str]]:
    """The questions that were not answered or refused as labelled."""
    return [
        {
            "question": trial.question,
            "kind": trial.kind.replace("_", " "),
            "outcome": " ".join(filter(None, (trial.outcome, trial.level or trial.reason))),
            "answer": trial.answer,
        }
        for trial in answers.wrong_trials(found)
    ]


def about(evaluation: Evaluation) -> str:
    """The set, the targets and the parts that were measured, in a few sentences."""
    asked = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in evaluation.questions.items())
    cut = evaluation.unreachable_targets
    return (
        f"{evaluation.documents:,} documents in {evaluation.passages:,} passages; questions: {asked}. Targets are"
        f" {evaluation.targets}{f', of which {cut} lie in no passage as a whole' if cut else ''}. Embedder"
        f" {evaluation.embedder}, calibration {evaluation.calibration_kind} ({evaluation.calibration_id}), generator"
        f" {evaluation.generator or 'not asked'}, gate at {evaluation.threshold:.2f}."
    )


def wrong_counts(wrong: Mapping[str, int]) -> list[dict[str, str]]:
    """The kinds of wrong outcomes as a table for the terminal, most frequent first."""
    ordered = sorted(wrong.items(), key=lambda item: (-item[1], item[0]))
    return [{"what went wrong": what, "questions": f"{count:,}"} for what, count in ordered]


def _wrong_table(wrong: Mapping[str, int]) -> tuple[report.Markup, ...]:
    if not wrong:
        return ()
    listed = [list(row.values()) for row in wrong_counts(wrong)]
    return report.heading("What went wrong"), report.table(["What", "Questions"], listed)


def _figure_table(figures: Mapping[str, Figure]) -> report.Markup:
    columns = ["Figure", "Value", "95 % interval", "Questions", "What it is"]
    return report.table(columns, [_figure_row(name, figure) for name, figure in figures.items()])


def _figure_row(name: str, figure: Figure) -> list[object]:
    label, meaning = _named(name)
    value = "-" if figure.value is None else figure.value
    return [label, value, _interval(figure), figure.questions, meaning]


def _named(name: str) -> tuple[str, str]:
    start = next(start for start in MEANING if name.startswith(start))
    label, meaning = MEANING[start]
    kind = name.removeprefix(start).replace("_", " ").strip()
    return f"{label}, {kind}" if kind else label, meaning


def _interval(figure: Figure) -> str:
    """Formats an interval with non-breaking spaces, so that it stays on one line."""
    return "-" if figure.low is None else f"{figure.low:.3f}\u00a0to\u00a0{figure.high:.3f}"


def _mistakes(title: str, nothing: str, mistakes: Sequence[Mistake]) -> tuple[report.Markup, ...]:
    if not mistakes:
        return report.heading(title), report.paragraph(nothing)
    listed = [[item.question, item.expected, item.found, item.score, item.what] for item in mistakes]
    columns = ["Question", "Expected", "Found first", "Score", "What went wrong"]
    return report.heading(title), report.table(columns, listed, f"The worst {len(mistakes)}, worst first.")


def _failures(failures: Sequence[Mapping[str, str]]) -> tuple[report.Markup, ...]:
    if not failures:
        return ()
    listed = [[item["question"], item["error"]] for item in failures]
    return report.heading("Not measured"), report.table(["Question", "Why"], listed)
