"""What an answer's confidence means: the share of such answers that is right, measured on labelled questions. Pure.

Fitted by bench/certainty.py, which names its data and prints how the fit holds on other sets. No offline score tells a
near miss from an answer, so a set with many of them is right less often than this says.
"""

import math
from typing import NamedTuple

from engine.models import Curve
from engine.retrieval.calibrate import interpolate


class Signs(NamedTuple):
    """What is known of an extractive answer: the gate's score, and the cosine and the share of words of its best unit."""

    score: float
    cosine: float
    share: float


INTERCEPT = -3.474
WEIGHTS = Signs(score=1.703, cosine=4.186, share=0.82)  # of a logistic regression

# The share of passages that hold the answer, by the score of the best cited one.
PASSAGE_RIGHT: Curve = ((0.65, 0.394), (0.723, 0.573), (0.778, 0.663), (0.832, 0.817), (0.899, 0.841))


def answer_probability(signs: Signs) -> float:
    weighted = sum(weight * sign for weight, sign in zip(WEIGHTS, signs, strict=True))
    return 1 / (1 + math.exp(-(INTERCEPT + weighted)))


def passage_probability(score: float) -> float:
    return interpolate(PASSAGE_RIGHT, score)
