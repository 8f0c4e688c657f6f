"""A pair as the judge reads it: question, then heading and the sentence before, then the sentence."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

QUESTION_MAX, BEFORE_MAX, SENTENCE_MAX = 40, 32, 80  # tokens; of what stands before, the last ones
START, END = 101, 102  # [CLS], [SEP]


@dataclass(frozen=True)
class Pair:
    ids: list[int]
    types: list[int]
    span: tuple[int, int] | None  # the tokens of the answer


class PairReader:
    def __init__(self, tokenizer: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.tokens = lru_cache(200_000)(self._tokens)

    def pair(self, question: str, before: str, sentence: str, answer: tuple[int, int] | None = None) -> Pair:
        asked, above = self.tokens(question)[0][:QUESTION_MAX], self.tokens(before)[0][-BEFORE_MAX:]
        read, offsets = self.tokens(sentence)
        first = [START, *asked, END, *above, END]
        ids = [*first, *read[:SENTENCE_MAX], END]
        types = [0] * len(first) + [1] * (len(ids) - len(first))
        return Pair(ids, types, _span(answer, offsets[:SENTENCE_MAX], len(first)))

    def _tokens(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return encoded.ids, encoded.offsets


def before(heading: str, sentence: str) -> str:
    return f"{heading}: {sentence}" if heading else sentence


def _span(
    answer: tuple[int, int] | None, offsets: list[tuple[int, int]], first: int
) -> tuple[int, int] | None:
    if answer is None:
        return None
    held = [first + n for n, (start, end) in enumerate(offsets) if start < answer[1] and end > answer[0]]
    return (held[0], held[-1]) if held else None
