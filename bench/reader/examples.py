"""Training examples: a question with sentences that answer it and sentences that only look as if they did. Pure but for reading.

Of the two sets that are read, neither is in the repository (README.md names them).
"""

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ingest import sentences

HELD_OUT_ARTICLE = "To_Kill_a_Mockingbird"
HELD_OUT_PARAGRAPH = 5  # every fifth paragraph of the articles that have unanswerable questions
SELQA_HELD_OUT = 8  # every eighth question
OPPOSITES = (
    "first last|before after|most least|highest lowest|largest smallest|north south|east west|increase decrease"
    "|began ended|start end|won lost|higher lower|more fewer|early late|oldest youngest|best worst|inside outside"
    "|male female|father mother|brother sister|son daughter|major minor|longest shortest|earliest latest"
    "|began stopped|released cancelled|allowed forbidden|accepted rejected|joined left|bought sold|positive negative"
)
_OPPOSITE = dict(way for pair in OPPOSITES.split("|") for way in (pair.split(), pair.split()[::-1]))
_NAME = re.compile(r"(?<=[^.?!] )(?:[A-Z][\w'\u2019-]+)(?: (?:of |the )?[A-Z][\w'\u2019-]+)*|\b\d[\d,.]*\b")


@dataclass(frozen=True)
class ReadSentence:
    text: str
    heading: str
    before: str  # the sentence before it
    group: str  # its article
    paragraph: int


@dataclass(frozen=True)
class Example:
    """`spans` has, for each sentence that answers, the characters of the answer if they are known."""

    question: str
    group: str
    paragraph: int
    spans: Mapping[int, tuple[int, int] | None]  # by the number of the sentence; empty: nothing answers
    answers: tuple[str, ...] = ()
    near: tuple[int, ...] = ()  # the sentences of its paragraph, first those that only seem to answer
    is_held_out: bool = False


@dataclass
class Collection:
    sentences: list[ReadSentence] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)


def collected(folder: Path) -> Collection:
    made = Collection()
    for article in json.loads((folder / "squad2_train_part.json").read_text())["data"]:
        _add_article(made, article)
    with (folder / "selqa_dev.jsonl").open() as lines:
        for number, line in enumerate(lines):
            _add_section(made, json.loads(line), number)
    return made


def _add_article(made: Collection, article: dict[str, Any]) -> None:
    name, heading = article["title"], article["title"].replace("_", " ")
    has_unanswerable = any(q["is_impossible"] for p in article["paragraphs"] for q in p["qas"])
    for number, paragraph in enumerate(article["paragraphs"]):
        text, first = paragraph["context"], len(made.sentences)
        places = list(sentences.spans(text))
        texts = [text[start:end] for start, end in places]
        made.sentences += [
            ReadSentence(words, heading, texts[n - 1] if n else "", name, number)
            for n, words in enumerate(texts)
        ]
        held_out = name == HELD_OUT_ARTICLE or (has_unanswerable and number % HELD_OUT_PARAGRAPH == 0)
        near = tuple(range(first, len(made.sentences)))
        for asked in paragraph["qas"]:
            spans = dict(_located(answer, places, first) for answer in asked["answers"])
            answers = tuple({answer["text"] for answer in asked["answers"]})
            seeming = [_located(answer, places, first)[0] for answer in asked.get("plausible_answers", ())]
            nearest = tuple(dict.fromkeys([*seeming, *near]))
            made.examples.append(
                Example(asked["question"].strip(), name, number, spans, answers, nearest, held_out)
            )


def _located(
    answer: dict[str, Any], places: list[tuple[int, int]], first: int
) -> tuple[int, tuple[int, int]]:
    """The sentence of an answer, and the answer's characters in it."""
    at = answer["answer_start"]
    number = max(n for n, (start, _) in enumerate(places) if start <= at)
    start, end = places[number]
    return first + number, (at - start, min(at + len(answer["text"]), end) - start)


def _add_section(made: Collection, section: dict[str, Any], number: int) -> None:
    first, name = len(made.sentences), f"selqa-{number}"
    texts = section["sentences"]
    made.sentences += [
        ReadSentence(words, "", texts[n - 1] if n else "", name, 0) for n, words in enumerate(texts)
    ]
    spans: dict[int, tuple[int, int] | None] = {first + n: None for n in section["answers"]}
    near = tuple(range(first, len(made.sentences)))
    made.examples.append(Example(section["question"], name, 0, spans, (), near, number % SELQA_HELD_OUT == 0))


def near_misses(made: Collection, chosen: random.Random) -> Iterator[Example]:
    """Answerable questions with a name, a number or a word exchanged, so that their sentence no longer answers them."""
    names: dict[str, list[str]] = {}
    for example in made.examples:
        names.setdefault(example.group, []).extend(_NAME.findall(example.question))
    for example in made.examples:
        if example.is_held_out or not example.answers:
            continue
        about = " ".join(made.sentences[n].text for n in example.near)
        question = _exchanged(example, about, names[example.group], chosen)
        if question:
            first = tuple(example.spans) + tuple(n for n in example.near if n not in example.spans)
            yield replace(example, question=question, spans={}, near=first)


def _exchanged(example: Example, about: str, names: list[str], chosen: random.Random) -> str | None:
    words = example.question.split()
    turned = [n for n, word in enumerate(words) if word in _OPPOSITE]
    if turned:
        place = chosen.choice(turned)
        return " ".join([*words[:place], _OPPOSITE[words[place]], *words[place + 1 :]])
    held = [name for name in _NAME.findall(example.question) if name in about]
    if not held:
        return None
    old = chosen.choice(held)
    others = sorted({n for n in names if n not in about and n[0].isdigit() == old[0].isdigit()})
    return example.question.replace(old, chosen.choice(others)) if others else None
