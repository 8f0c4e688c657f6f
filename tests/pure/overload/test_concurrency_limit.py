"""How many questions are worked on at once follows from how long its steps wait for the event loop and for a thread."""

from engine.admission.overload.concurrency_limit import (
    LEAST,
    MOST,
    OWN_S,
    START,
    STEP_MAX_S,
    THREAD_MAX_S,
    ConcurrencyLimit,
)


def after(looks: int, seconds: float, service_s: float = 0.0, *, is_used_up: bool = True) -> float:
    limit = ConcurrencyLimit()
    for _ in range(looks):
        limit.note_waits(seconds, 0.0, service_s, is_used_up=is_used_up)
    return limit.at_once


def test_while_steps_come_soon_it_grows_as_far_as_it_is_used() -> None:
    assert after(200, 0.001) == MOST
    assert after(200, 0.001, is_used_up=False) == START


def test_while_steps_come_late_it_shrinks() -> None:
    assert after(200, 2 * STEP_MAX_S) == LEAST


# Seen red with the least number for all.
def test_it_does_not_shrink_below_what_keeps_the_loop_busy() -> None:
    assert after(200, 2 * STEP_MAX_S, service_s=1.0) == 1.0 / OWN_S
    assert after(200, 2 * STEP_MAX_S, service_s=60.0) == MOST


def test_where_questions_take_the_loop_itself_it_shrinks_all_the_way() -> None:
    """Fewer at once then take less long each."""
    limit = ConcurrencyLimit()
    for _ in range(200):
        limit.note_waits(2 * STEP_MAX_S, 0.0, service_s=limit.at_once * OWN_S / 2, is_used_up=True)
    assert limit.at_once == LEAST


# Seen red without a moving average.
def test_one_long_wait_changes_nothing() -> None:
    limit = ConcurrencyLimit()
    limit.note_waits(4 * STEP_MAX_S, 4 * THREAD_MAX_S, 0.0, is_used_up=False)
    assert limit.at_once == START


# Seen red with the wait for the loop alone: sixty questions waited for the embedder's threads, for two seconds each.
def test_while_threads_are_taken_it_shrinks_although_steps_come_soon() -> None:
    limit = ConcurrencyLimit()
    for _ in range(200):
        limit.note_waits(0.001, 2 * THREAD_MAX_S, 0.0, is_used_up=True)
    assert limit.at_once == LEAST
