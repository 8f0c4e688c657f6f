"""Adaptive concurrency limit (pure): how many questions are worked on at once, by how long the event loop and the threads let wait.

Nobody can know the number: it is a few where everything runs in this process, and hundreds where a question waits a
second for a model elsewhere. Two waits are what both have in common: for the next step on the event loop, and for a
thread, where the embedder works. Each question that has work to do makes one of them longer, and one that waits for others
does not. So the limit grows while all places are taken and both are short, and shrinks while one is long. It does not
shrink below what would keep the loop busy: where questions wait for others, fewer of them would not make the waits
shorter, whatever has made them long.
"""

from dataclasses import dataclass

LEAST = 4  # below it the parts beside the loop, such as the database, have too little to do at once
MOST = 512
START = 64
OWN_S = 0.02  # of the loop's time for a question, at most: what a question takes longer, it waits for others
STEP_MAX_S = 0.02  # until a question's next step: more questions at once would only wait there
THREAD_MAX_S = 0.02  # until a thread is free
WEIGHT = 0.2  # of the newest in the moving averages, so that one long wait changes little
FACTOR = 1.05


@dataclass(slots=True)
class ConcurrencyLimit:
    """The limit of one process."""

    least: float = LEAST
    most: float = MOST
    at_once: float = START
    step_s: float = 0.0
    thread_s: float = 0.0

    def note_waits(self, step_s: float, thread_s: float, service_s: float, *, is_used_up: bool) -> None:
        """A question's next step came after so long, a thread was free after so long, and questions take so long. A limit
        that is not used up says nothing about a higher one."""
        self.step_s += WEIGHT * (step_s - self.step_s)
        self.thread_s += WEIGHT * (thread_s - self.thread_s)
        least = min(max(self.least, service_s / OWN_S), self.most)
        if self.step_s > STEP_MAX_S or self.thread_s > THREAD_MAX_S:
            self.at_once = max(least, self.at_once / FACTOR)
        elif is_used_up:
            self.at_once = min(self.most, max(least, self.at_once * FACTOR))
