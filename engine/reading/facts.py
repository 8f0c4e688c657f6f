"""The fact that a question asks for: a price, a year, a maker, a count. English only. Pure.

A fact is required only where the words of the question leave no doubt: "who invented", "in which year", "how many
kilos". A text about the right thing that states no such fact does not answer the question.
"""
# ruff: noqa: RUF001 - the patterns look for quotes, dashes and full-width punctuation

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.retrieval import lexical


@dataclass(frozen=True, slots=True)
class Fact:
    """A kind of fact, as a pattern that every text which states it matches."""

    name: str
    stated: re.Pattern[str]
    beside: frozenset[str] = (
        frozenset()
    )  # word stems of which the text or its heading needs one: what is counted

    def is_stated(self, text: str, heading: str = "") -> bool:
        if not self.stated.search(text):
            return False
        return not self.beside or not self.beside.isdisjoint(lexical.words(f"{heading} {text}"))


def asked_fact(question: str) -> Fact | None:
    """The fact that the first clause of such a form asks for."""
    for clause in _CLAUSE.findall(question):
        if not _ASKS_ANOTHER_WAY.match(clause) and (found := _of_clause(clause)):
            return found
    return None


def _of_clause(clause: str) -> Fact | None:
    for pattern, fact in _ASKED:
        if pattern.search(clause):
            return fact
    if not _NUMBER_ASKED.search(clause):
        return None
    counted = _COUNTED.search(clause)
    beside = frozenset(lexical.words(counted[1])) if counted else frozenset[str]()
    return Fact("number", _ANY_NUMBER, beside - _UNCOUNTED)


def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_NUMBER_WORD = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|sixty|eighty"
    r"|ninety|hundreds?|thousands?|millions?|billions?|dozens?|half|twice|single|several|no)"
)
_NUMBER = rf"(?:\d[\d.,]*|\b{_NUMBER_WORD}\b)"
_ANY_NUMBER = _pattern(_NUMBER)
_YEAR = _pattern(
    r"\b(?:1[5-9]\d\d|20\d\d)s?\b|\b\d{1,2}(?:th|st) century\b|\b(?:january|february|march|april|june|july|august|september"
    r"|october|november|december)\b|\bweeks? \d"
)
_MADE = r"(?:invent|develop|creat|design|introduc|propos|publish|found|discover|coin|wrote|written|built|build|made|make|maintain|led by|first|pioneer|author|paper)"
_MAKER = re.compile(
    rf"(?i:\b{_MADE}\w*)[^.]*\b(?:by|at) (?:[a-z]+ ){{0,3}}[A-Z]\w+|\b[A-Z]\w+(?: [A-Z]\w+)* (?i:{_MADE})\w*|\b[A-Z]\w+['’]s\b|et al\b"
)
_NAME = re.compile(r"(?<=[a-z,;:(–-] )[A-Z]\w+")
_FORMULA = re.compile(r"[=≈∝]")


def _unit(*names: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?:\d|\b{_NUMBER_WORD}\b|[kKMGm])\s*[- ]?(?:{'|'.join(names)})(?![a-zA-Z])", re.IGNORECASE
    )


_MONEY = _pattern(
    rf"[$€£¥₹]\s?\d|{_NUMBER}\s*(?:k\s*)?(?:dollars?|euros?|pounds?|usd|eur|cents?|francs?|rupees?|yen)\b|\bfree (?:of charge|to use)\b|\bfor free\b|\bis free\b"
)
_WEIGHT = _unit(
    "kg",
    "kgs?",
    "kilos?",
    "kilograms?",
    "g",
    "grams?",
    "lbs?",
    "pounds?",
    "tonnes?",
    "tons?",
    "t",
    "mg",
    "ounces?",
    "oz",
)
_LENGTH = _unit(
    "m",
    "cm",
    "mm",
    "km",
    "µm",
    "nm",
    "met(?:er|re)s?",
    "centimet(?:er|re)s?",
    "millimet(?:er|re)s?",
    "kilomet(?:er|re)s?",
    "feet",
    "foot",
    "ft",
    "inch(?:es)?",
    "in",
    "miles?",
)
_DURATION = _unit(
    "s",
    "ms",
    "µs",
    "us",
    "min",
    "h",
    "hrs?",
    "seconds?",
    "milliseconds?",
    "minutes?",
    "hours?",
    "days?",
    "weeks?",
    "months?",
    "years?",
    "decades?",
)
_SPEED = _unit(
    "m/s",
    "km/h",
    "mph",
    "rpm",
    "hz",
    "khz",
    "mhz",
    "ghz",
    "fps",
    "met(?:er|re)s? per second",
    "times",
    "gbit/s",
    "mbit/s",
    "mb/s",
    "mbps",
    "gbps",
    "%",
)
_ANGLE = _unit("°", "degrees?", "deg", "rad", "radians?")
_FORCE = _unit("n", "kn", "newtons?", "nm")
_PERCENT = _unit("%", "percent", "per cent")

# The first question word of a clause says what it asks for: "how does it know how far away" asks for no distance.
_ASKS_ANOTHER_WAY = _pattern(
    r"\A\W*(?:(?:and|but|so|then|or|please|hi|hello)\b\W*)*"
    r"(?:why|how (?:do|does|did|can|could|should|would|to|come)|when (?:do|does|can|should|would|will|must|is|are)"
    r"|(?:is|are|was|were|do|does|did|can|could|should|must|may|will|would|has|have|isn't|aren't|doesn't|don't)\b"
    r"(?!.*\b(?:what|how many|how much|which)\b))\b"
)
_CLAUSE = re.compile(r"[^.!?;\n]+")

_ASKED: Sequence[tuple[re.Pattern[str], Fact]] = (
    (_pattern(r"\bhow (?:many|much)\b.*\b(?:costs?|charge|pay|price|dollars|euros|money)\b|\bhow expensive\b|\bprices?\b|\bwhat\b.*\b(?:costs?(?! of\b)|charges? for)\b|(?<!by )\bhow much (?:is|are) (?:an?|the|it)\b"), Fact("price", _MONEY)),
    (_pattern(r"\bhow (?:many|much)\b.*\b(?:weigh\w*|kilos?|kilograms?|grams?|kg|pounds)\b|\bhow heavy\b|\bheaviest\b"), Fact("weight", _WEIGHT)),
    (_pattern(r"\bhow (?:tall|far|high|deep|wide|thick)\b|\bin (?:milli|centi|kilo)?met(?:er|re)s\b"), Fact("length", _LENGTH)),
    (_pattern(r"\bhow long (?:do|does|did|will|would|can|must|should|until|before)\b|\bhow many (?:seconds|minutes|hours|days|weeks|months|years)\b"), Fact("duration", _DURATION)),
    (_pattern(r"\bhow (?:fast|often)\b|\bhow many times per\b"), Fact("speed", _SPEED)),
    (_pattern(r"\bin degrees\b|\bhow many degrees\b|\bviewing angle\b|\bfield of view\b"), Fact("angle", _ANGLE)),
    (_pattern(r"\bhow many newtons\b|\bhow hard\b"), Fact("force", _FORCE)),
    (_pattern(r"\b(?:what|which) (?:percentage|percent|share|fraction)\b|\bhow many per ?cent\b"), Fact("share", _PERCENT)),
    (_pattern(r"\b(?:what|which) (?:year|date|month|century)\b|\bsince when\b|\buntil when\b|\bby when\b|\bhow old\b|\bwhen (?:was|were|did)\b"), Fact("time", _YEAR)),
    (_pattern(r"\b(?:formula|equation) (?:for|of|to)\b|\bwhich (?:formula|equation)\b"), Fact("formula", _FORMULA)),
    (_pattern(r"\bwhat (?:is|are|were|was) the names?\b"), Fact("name", _NAME)),
    (_pattern(
        r"\bwho\b.*\b(?:invent\w*|develop\w*|creat\w*|design\w*|wr(?:ote|itten)|thought? (?:up|of)|came up|discover\w*|found(?:ed)?"
        r"|made|built|publish\w*|introduc\w*|propos\w*|coin\w*)\b"
        r"|\b(?:which|what) (?:company|organi[sz]ation|person|university|institute)\b|\bwhose\b"), Fact("maker", _MAKER)),
)  # fmt: skip

_COUNTED = _pattern(
    r"\bhow many (?:of )?(?:[\w-]+ ){0,3}?([\w-]+)(?= (?:do|does|did|can|may|will|would|should|has|have|is|are|in|on|of|for|to|per|from|you|we|i|must|there)\b|\W*\Z)"
)
_UNCOUNTED = frozenset(lexical.words("numbers values things times ways parts kinds types sorts pieces items"))
_NUMBER_ASKED = _pattern(
    r"\bhow (?:many|much)\b|\b(?:what|which) (?:\w+ )?(?:number|port|value)\b|\bnumber of\b"
)
