"""How many questions are worked on at once follows from how long the event loop takes for a turn."""

from engine.admission.overload.concurrency_limit import LEAST, MOST, START, TURN_MAX_S, ConcurrencyLimit


def after(turns: int, seconds: float, *, is_used_up: bool = True) -> float:
    limit = ConcurrencyLimit()
    for _ in range(turns):
        limit.note_turn(seconds, is_used_up=is_used_up)
    return limit.at_once


def test_while_turns_are_short_it_grows_as_far_as_it_is_used() -> None:
    assert after(200, 0.001) == MOST
    assert after(200, 0.001, is_used_up=False) == START


def test_while_turns_are_long_it_shrinks() -> None:
    assert after(200, 2 * TURN_MAX_S) == LEAST


# Seen red without a moving average.
def test_one_long_turn_changes_nothing() -> None:
    limit = ConcurrencyLimit()
    limit.note_turn(4 * TURN_MAX_S, is_used_up=False)
    assert limit.at_once == START
