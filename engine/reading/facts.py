"""The fact that a question asks for: a price, a year, a maker, a count. English only. Pure.

A fact is required only where the words of the question leave no doubt: "who invented", "in which year", "how many
kilos". A text about the right thing that states no such fact does not answer the question.
"""
# ruff: noqa: RUF001 - the patterns look for quotes, dashes and full-width punctuation

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.retrieval import lexical


@dataclass(frozen=True, slots=True)
class Fact:
    """A kind of fact, as a pattern that every text which states it matches."""

    name: str
    stated: re.Pattern[str]
    # Word stems of which the text or its heading needs one: what is counted.
    beside: frozenset[str] = frozenset()
    # Names such as D435i, of which it needs one: another model's fact is none.
    models: frozenset[str] = frozenset()

    def is_stated(self, text: str, heading: str = "") -> bool:
        if not self.stated.search(text):
            return False
        where = f"{heading} {text}"
        is_counted = not self.beside or not self.beside.isdisjoint(lexical.words(where))
        return is_counted and (not self.models or any(name in where.lower() for name in self.models))


def asked_fact(question: str) -> Fact | None:
    """The fact that the first clause of such a form asks for."""
    for clause in _CLAUSE.findall(question):
        if not _ASKS_ANOTHER_WAY.match(clause) and (found := _of_clause(clause)):
            return replace(found, models=frozenset(map(str.lower, _MODEL.findall(question))))
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


def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of English words, written with capitals or without."""
    return re.compile(pattern, re.IGNORECASE)


_NUMBER_WORD = (
    r"(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundreds?|thousands?|millions?|billions?|dozens?|half|twice|single|several"
    r"|no|none|both|a (?:pair|couple|few))"
)
_ORDINAL = r"(?:second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|\d+(?:st|nd|rd|th))"
_NUMBER = rf"(?:\d[\d.,]*|\b{_NUMBER_WORD}\b)"
_ANY_NUMBER = compiled(rf"{_NUMBER}|\b{_ORDINAL}\b|\b(?:first|quarter|double|once)\b")
_MONTH = r"(?:january|february|march|april|may|june|july|august|september|october|november|december)"
_TIME = compiled(
    rf"(?<![\d.,])\d{{3,4}}s?\b(?![.,]\d)|\bcentur(?:y|ies)\b|\b{_MONTH}\b|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b"
    r"|\b(?:weeks?|days?|age|aged) (?:of )?\d|\b\d+(?:st|nd|rd|th)\b"
)
_MADE = (
    r"(?:invent(?:ed|or)|developed|developer|created|creator|designed|introduced|proposed|published|found(?:ed|er)|discovered|coined"
    r"|wrote|written|built (?:by|at)|made (?:by|at)|maintained|led by|pioneered|authors?|first paper|paper by)"
)
_MAKER = re.compile(
    rf"\A(?=.*[\w,;:(–-] [A-Z]\w+)(?i:.*\b{_MADE}\w*)"
    rf"|\A(?!(?:The|An?|It|This|That|These|Those|They|He|She|In|At|On)\b)[A-Z]\w+(?: \w+){{0,4}}? (?i:{_MADE})"
    r"|\b[A-Z]\w+['’]s\b|et al\b",
    re.DOTALL,
)
_NAME = re.compile(r"(?<=[\w,;:(–-] )[A-Z]\w+|\w[_.]\w|`|\b(?:called|calls|named|known as)\b")
_FORMULA = re.compile(r"[=≈∝]")


def _unit(names: str) -> str:
    """A number with one of these units behind it."""
    units = "|".join(names.split())
    return rf"(?:\d|\b{_NUMBER_WORD}\b|\b{_ORDINAL}\b|[kKMGm])\s*[- ]?(?:{units})(?![a-zA-Z])"


_MONEY = compiled(
    rf"[$€£¥₹]\s?\d|{_NUMBER}\s*(?:k\s*)?(?:of )?(?:dollars?|euros?|pounds?|usd|eur|cents?|francs?|rupees?|yen)\b"
    r"|\bfree (?:of charge|to use)\b|\bfor free\b|\bis free\b"
)
_WEIGHT = compiled(_unit("kgs? kilos? kilograms? g grams? lbs? pounds? tonnes? tons? t mg ounces? oz"))
_MEASURE = rf"{_NUMBER}\s*-?\s*[a-zA-Z°%µ]"  # a number with any unit
_LENGTH = compiled(
    _unit(
        "m cm mm km µm nm met(?:er|re)s? centimet(?:er|re)s? millimet(?:er|re)s? kilomet(?:er|re)s? feet foot ft inch(?:es)? in"
        " miles?"
    )
    + r"|\d['′]\s?\d"
)
_DURATION = compiled(
    _unit(
        "s sec ms µs us min h hrs? seconds? milliseconds? minutes? hours? days? weeks? months? years? decades?"
    )
    + r"|\bfor (?:months|weeks|years|days|hours)\b"
)
_SPEED = compiled(
    _unit("m/s km/h mph rpm [kmg]?hz fps met(?:er|re)s? times [kmg]bit/s [kmg]b/s [kmg]bps % days?")
    + r"|\b(?:every|each|before|after|whenever|when)\b|\b(?:hourly|daily|weekly|monthly|yearly|annual(?:ly)?|once|twice)\b"
    + r"|\bper (?:second|minute|hour|day|week|month|year)\b"
)
_ANGLE = compiled(_unit("°[CF]? °\\s?[CF] degrees? deg rad radians?"))
_FORCE = compiled(_unit("n kn newtons? nm"))
_SHARE = compiled(
    _unit("% percent per\\scent out\\sof in")
    + r"|\b(?:quarters?|thirds?|half|halves|fifths?|tenths?|most|majority)\b"
)

# The first question word of a clause says what it asks for: "how does it know how far away" asks for no distance.
_ASKS_ANOTHER_WAY = compiled(
    r"\A\W*(?:(?:and|but|so|then|or|please|hi|hello)\b\W*)*"
    r"(?:why|how (?:do|does|did|can|could|should|would|to|come)|when (?:do|does|can|should|would|will|must|is|are)"
    r"|(?:is|are|was|were|do|does|did|can|could|should|must|may|will|would|has|have|isn't|aren't|doesn't|don't)\b"
    r"(?!.*\b(?:what|how many|how much|which)\b))\b"
)
_MODEL = re.compile(r"(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[a-zA-Z])(?!\d+[a-zA-Z]{1,3}(?![\w-]))[\w-]+")
_CLAUSE = re.compile(r"[^.!?;\n]+")

_ASKED: Sequence[tuple[re.Pattern[str], Fact]] = (
    (
        compiled(
            r"\bhow much\b.*\b(?:costs?|charge(?! of)|pay|price|money)\b|\bhow many (?:dollars|euros)\b|\bhow expensive\b"
            r"|\bwhat (?:do|does|did|would|will|might|that|it|this)\b.*\b(?:costs?(?=\W*\Z| (?:in|for|per|altogether|each|today|now|at|a)\b)|charge for\b)"
            r"|\bwhat(?:'s|’s| is| was) the (?:price|cost) of (?:an?|the)\b|\bprices?\W*\Z"
            r"|(?<!by )\bhow much (?:is|are) (?:an?|the|it)\b"
        ),
        Fact("price", _MONEY),
    ),
    (
        compiled(
            r"\bhow (?:many|much)\b.*\b(?:weigh\w*|kilos?|kilograms?|grams?|kg|pounds)\b|\bhow heavy\b|\bheaviest\b"
        ),
        Fact("weight", _WEIGHT),
    ),
    (
        compiled(r"\bhow (?:tall|wide|thick)\b|\bin (?:milli|centi|kilo)?met(?:er|re)s\b"),
        Fact("length", _LENGTH),
    ),
    (compiled(r"\bhow (?:far|high|deep|fast)\b"), Fact("measure", compiled(_MEASURE))),
    (
        compiled(
            r"\bhow long (?:do|does|did|will|would|until|before)\b|\bhow long (?:can|must|should)\b(?!.*\bbe\b)"
            r"|\bhow many (?:seconds|minutes|hours|days|weeks|months|years)\b"
        ),
        Fact("duration", _DURATION),
    ),
    (compiled(r"\bhow often\b|\bhow many times per\b"), Fact("speed", _SPEED)),
    (
        compiled(r"\bin degrees\b|\bhow many degrees\b|\bviewing angle\b|\bfield of view\b"),
        Fact("angle", _ANGLE),
    ),
    (compiled(r"\bhow many newtons\b"), Fact("force", _FORCE)),
    (
        compiled(r"\b(?:what|which) (?:percentage|percent|share|fraction)\b|\bhow many per ?cent\b"),
        Fact("share", _SHARE),
    ),
    (
        compiled(
            r"\b(?:what|which) (?:year|date|month|century)\b(?! format)|\b(?:since|until|by) when\b|\bwhen (?:was|were|did)\b"
        ),
        Fact("time", _TIME),
    ),
    (compiled(r"\b(?:formula|equation) (?:for|of|to)\b"), Fact("formula", _FORMULA)),
    (
        compiled(
            r"\bwhat (?:is|are|were|was) the names?\b"
            r"|\b(?:which|what) (?:company|organi[sz]ation|person|university|institute)\b"
        ),
        Fact("name", _NAME),
    ),
    (
        compiled(
            r"\bwho (?:first |originally |has |had )?(?:invented|developed|created|designed|wrote|thought (?:up|of)|came up with"
            r"|discovered|founded|made|built|published|introduced|proposed|coined)\b"
        ),
        Fact("maker", _MAKER),
    ),
)

_AUXILIARY = r"(?:do|does|did|can|may|will|would|should|has|have|had|is|are|was|were|must)"
_COUNTED = compiled(
    rf"\bhow many (?:of )?(?!{_AUXILIARY}\b)(?:[\w-]+ ){{0,3}}?([\w-]+)"
    rf"(?= (?:{_AUXILIARY}|in|on|of|for|to|per|from|you|we|i|there|came|live|exist|make|made)\b|\W*\Z)"
)
_UNCOUNTED = frozenset(
    lexical.words("numbers values things times ways parts kinds types sorts pieces items people")
)
_NUMBER_ASKED = compiled(
    r"\bhow (?:many|old)\b|\bhow much (?!(?:do|does|did|is|are|was|were|can|should|would|will|of)\b)\w+|\bby how much\b"
    r"|\b(?:what|which) (?:\w+ )?(?:number|port)\b|\bnumber of\b"
)
