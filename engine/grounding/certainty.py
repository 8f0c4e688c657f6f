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


INTERCEPT = -3.492
WEIGHTS = Signs(score=1.358, cosine=4.459, share=0.963)  # of a logistic regression

# The share of passages that hold the answer, by the score of the best cited one.
PASSAGE_RIGHT: Curve = ((0.648, 0.389), (0.724, 0.56), (0.779, 0.667), (0.833, 0.811), (0.902, 0.844))


def answer_probability(signs: Signs) -> float:
    weighted = sum(weight * sign for weight, sign in zip(WEIGHTS, signs, strict=True))
    return 1 / (1 + math.exp(-(INTERCEPT + weighted)))


def passage_probability(score: float) -> float:
    return interpolate(PASSAGE_RIGHT, score)
