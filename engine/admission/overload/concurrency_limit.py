"""Adaptive concurrency limit (pure): how many questions are worked on at once, by the length of a turn of the event loop.

Nobody can know the number: it is a few where everything runs in this process, and hundreds where a question waits a
second for a model elsewhere. A turn of the loop is what both have in common: each question that has work to do makes it
longer, one that waits does not, and whoever is refused waits for a few turns. So the limit grows while all places are
taken and turns are short, and shrinks while they are long. It does not shrink below what would keep the loop busy: where questions
wait for others, fewer of them would not make turns shorter, whatever has made them long.
"""

from dataclasses import dataclass

LEAST = 4  # below it the parts beside the loop, such as the database, have too little to do at once
MOST = 512
START = 64
OWN_S = 0.02  # of the loop's time for a question, at most: what a question takes longer, it waits for others
TURN_MAX_S = 0.005  # of the loop: a refusal takes a few turns, and has 50 ms
WEIGHT = 0.2  # of the newest turn in the moving average, so that one long turn changes little
FACTOR = 1.05


@dataclass(slots=True)
class ConcurrencyLimit:
    """The limit of one process."""

    least: float = LEAST
    most: float = MOST
    at_once: float = START
    turn_s: float = 0.0

    def note_turn(self, seconds: float, service_s: float, *, is_used_up: bool) -> None:
        """A turn of the event loop took so long, and questions do. A limit that is not used up says nothing about a higher one."""
        self.turn_s += WEIGHT * (seconds - self.turn_s)
        least = min(max(self.least, service_s / OWN_S), self.most)
        if self.turn_s > TURN_MAX_S:
            self.at_once = max(least, self.at_once / FACTOR)
        elif is_used_up:
            self.at_once = min(self.most, max(least, self.at_once * FACTOR))
