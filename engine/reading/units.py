"""Groups the sentences of passages into units: what has to be quoted together, so that each unit states something. Pure.

A sentence that leans on the one before brings it along, a list item its lead-in, a lead-in its list, and a row of a table
its header. Text that never answers a question is in no unit.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from engine.models import Passage, RetrievedPassage
from engine.words.languages import count_words

LISTED_MAX = 8  # items of a list that its lead-in brings along
ROWS_MAX = 4
COMPARED_CHARACTERS = 700  # of a unit: a longer one is a list or code whose beginning tells what it is about
WORDS_MIN = 4  # fewer words of prose state nothing by themselves
_CODE_BEHIND = 3  # sentences between a lead-in and its code

# A sentence that begins like this means nothing without the one before.
_LEANS = re.compile(
    r"(?:this|these|that|those|it|its|they|their|he|she|such|here|then|thus|therefore|hence|both|so|but|however|instead"
    r"|otherwise|for (?:this|that) reason)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Unit:
    """Sentences of one passage that are quoted together; the `main` one states what the unit is about."""

    passage: int
    main: int
    places: tuple[int, ...]
    text: str
    stated: str  # the main sentence, a row with the names of its columns
    heading: str

    def __str__(self) -> str:
        return f"{self.heading}: {self.text}"


def units(evidence: Sequence[RetrievedPassage], *, with_code: bool) -> list[Unit]:
    """The units of all passages in order. Of overlapping passages, the first one's."""
    found: dict[str, Unit] = {}
    for number, item in enumerate(evidence):
        for unit in _of_passage(number, item.passage, with_code=with_code):
            found.setdefault(f"{unit.heading}\n{item.passage.sentence_text(unit.main)}\n{unit.text}", unit)
    return list(found.values())


def row_text(header: str, row: str) -> str:
    """ "Sensor: lidar; Range: 100 m": a row as a sentence of its cells, each after the name of its column."""
    names, cells = (f" {text} ".split(" | ") for text in (header, row))  # an empty first or last cell counts
    if len(names) != len(cells):
        return row
    pairs = zip(map(str.strip, names), map(str.strip, cells), strict=True)
    return "; ".join(f"{name}: {cell}" if name else cell for name, cell in pairs if cell)


def _of_passage(number: int, passage: Passage, *, with_code: bool) -> Iterator[Unit]:
    places = groupby(range(len(passage.sentences)), key=lambda place: passage.sentences[place].heading)
    for heading, group in places:
        under = _Under(number, passage, heading or passage.chapter, list(group), with_code)
        yield from under.units()


@dataclass(frozen=True, slots=True)
class _Under:
    """The sentences under one heading."""

    number: int
    passage: Passage
    heading: str
    places: list[int]
    with_code: bool

    def units(self) -> Iterator[Unit]:
        label = ""
        for place in self.places:
            if self._kind(place) == "label":
                label = self.passage.sentence_text(place)
                continue
            for unit in filter(None, (self._unit(place), self._list_without_lead(place))):
                yield replace(unit, heading=f"{self.heading}: {label}") if label else unit

    def _unit(self, place: int) -> Unit | None:
        """The unit whose main sentence this is; None for what states nothing by itself."""
        kind, text = self._kind(place), self.passage.sentence_text(place)
        if kind == "row":
            return self._row(place)
        if kind == "statement" and count_words(text) >= WORDS_MIN:
            return self._made(place, [*self._leaned_on(place), place])
        if kind == "lead_in":
            led = self._led(place)
            return self._made(place, [place, *led]) if led else None
        if kind == "item":
            return self._made(place, [*self._lead(place), place], compared=[place])
        is_quoted = kind == "code" and (self.with_code or "\n" not in text)
        return self._made(place, [*self._introduced(place), place]) if is_quoted else None

    def _made(
        self, main: int, places: Sequence[int], *, compared: Sequence[int] = (), stated: str = ""
    ) -> Unit:
        text = " ".join(self.passage.sentence_text(place) for place in compared or places)
        own = stated or self.passage.sentence_text(main)
        compared_text, compared_own = (stated or text)[:COMPARED_CHARACTERS], own[:COMPARED_CHARACTERS]
        return Unit(self.number, main, tuple(places), compared_text, compared_own, self.heading)

    def _row(self, place: int) -> Unit:
        header = next(
            (other for other in self._run_before(place, "row") if self._kind(other) == "header"), None
        )
        if header is None:
            return self._made(place, [place])
        stated = row_text(self.passage.sentence_text(header), self.passage.sentence_text(place))
        return self._made(place, [header, place], stated=stated)

    def _leaned_on(self, place: int) -> list[int]:
        leans = _LEANS.match(self.passage.sentence_text(place))
        return [place - 1] if leans and self._kind(place - 1) in {"statement", "item", "lead_in"} else []

    def _lead(self, item: int) -> list[int]:
        return [other for other in self._run_before(item, "item")[-1:] if self._kind(other) == "lead_in"]

    def _run_before(self, place: int, kind: str) -> list[int]:
        """The places before this one, back to the first that is of another kind, which is the last of the list."""
        run = []
        for other in range(place - 1, self.places[0] - 1, -1):
            run.append(other)
            if self._kind(other) != kind:
                break
        return run

    def _list_without_lead(self, place: int) -> Unit | None:
        """A list that its heading announces."""
        items = [place, *self._run_after(place, {"item"}, LISTED_MAX - 1)]
        begins = self._kind(place) == "item" and self._kind(place - 1) not in {"item", "lead_in"}
        return self._made(place, items) if begins and len(items) > 1 else None

    def _led(self, lead: int) -> list[int]:
        """The list, the rows or the code that a lead-in announces."""
        for kinds, count in (({"item"}, LISTED_MAX), ({"header", "row"}, ROWS_MAX + 1)):
            led = self._run_after(lead, kinds, count)
            if led:
                return led
        return self._run_after(lead, {"code"}, 1) if self.with_code else []

    def _run_after(self, place: int, kinds: set[str], count: int) -> list[int]:
        led: list[int] = []
        for other in range(place + 1, min(place + 1 + count, self.places[-1] + 1)):
            if self._kind(other) not in kinds:
                break
            led.append(other)
        return led

    def _introduced(self, code: int) -> list[int]:
        """The lead-in shortly before a block of code."""
        before = range(code - 1, max(code - 1 - _CODE_BEHIND, self.places[0] - 1), -1)
        return next(([place] for place in before if self._kind(place) == "lead_in"), [])

    def _kind(self, place: int) -> str:
        """ "" beyond the heading's sentences."""
        return self.passage.sentences[place].kind if self.places[0] <= place <= self.places[-1] else ""
