"""Adaptive concurrency limit (pure): how many questions are worked on at once, by how long the event loop and the threads let wait.

Nobody can know the number: it is a few where everything runs in this process, and hundreds where a question waits a
second for a model elsewhere. Two waits are what both have in common: a turn of the loop, and the wait for a thread, where
the embedder works. Each question that has work to do makes one of them longer, one that waits for others does not, and
whoever is refused waits for a few turns. So the limit grows while all places are taken and both are short, and shrinks
while one is long. It does not shrink below what would keep the loop busy: where questions wait for others, fewer of them
would not make turns shorter, whatever has made them long.
"""

from dataclasses import dataclass

LEAST = 4  # below it the parts beside the loop, such as the database, have too little to do at once
MOST = 512
START = 64
OWN_S = 0.02  # of the loop's time for a question, at most: what a question takes longer, it waits for others
TURN_MAX_S = 0.005  # of the loop: a refusal takes a few turns, and has 50 ms
THREAD_MAX_S = 0.02  # until a thread is free: more questions at once would only wait there
WEIGHT = 0.2  # of the newest in the moving averages, so that one long turn changes little
FACTOR = 1.05


@dataclass(slots=True)
class ConcurrencyLimit:
    """The limit of one process."""

    least: float = LEAST
    most: float = MOST
    at_once: float = START
    turn_s: float = 0.0
    thread_s: float = 0.0

    def note_waits(self, turn_s: float, thread_s: float, service_s: float, *, is_used_up: bool) -> None:
        """A turn of the event loop took so long, a thread was free after so long, and questions take so long. A limit
        that is not used up says nothing about a higher one."""
        self.turn_s += WEIGHT * (turn_s - self.turn_s)
        self.thread_s += WEIGHT * (thread_s - self.thread_s)
        least = min(max(self.least, service_s / OWN_S), self.most)
        if self.turn_s > TURN_MAX_S or self.thread_s > THREAD_MAX_S:
            self.at_once = max(least, self.at_once / FACTOR)
        elif is_used_up:
            self.at_once = min(self.most, max(least, self.at_once * FACTOR))
