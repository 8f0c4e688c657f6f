"""The turnstile: bounded, fair by client, and nothing of a question stays when it leaves, whenever it does."""

import asyncio
import random
import time

import pytest

from engine.admission.overload.concurrency_limit import WEIGHT, ConcurrencyLimit
from engine.admission.overload.turnstile import OWN, RETRY_MAX_S, ROOM_MIN, Ticket, Turnstile
from engine.errors import OverloadedError

LONG_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turnstile(clock: Clock) -> Turnstile:
    """One question at a time, and room for as few as there ever is."""
    found = narrow(clock, 1)
    found._service_s = LONG_S
    return found


def narrow(clock: Clock, at_once: int) -> Turnstile:
    return Turnstile(ConcurrencyLimit(at_once, at_once, at_once), clock)


async def waiting(
    turnstile: Turnstile, client_id: str, turns: list[str]
) -> tuple[Ticket, asyncio.Task[None]]:
    """A question that says when it is its turn."""
    ticket = turnstile.enter(client_id)

    async def wait() -> None:
        await turnstile.wait(ticket, LONG_S)
        turns.append(client_id)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)  # it stands in the queue, or is served
    return ticket, task


async def fill(turnstile: Turnstile, client_id: str) -> list[tuple[Ticket, asyncio.Task[None]]]:
    found = []
    while True:
        try:
            found.append(await waiting(turnstile, client_id, []))
        except OverloadedError:
            return found


async def end(*found: tuple[Ticket, asyncio.Task[None]]) -> None:
    for ticket, task in found:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():  # else it has left by itself
            ticket.leave()


# Seen red with a `_free_room` that is never less than one, and with a reserve without a limit: the queue grew without an end.
async def test_a_full_queue_refuses_at_once_and_says_when_to_ask_again(turnstile: Turnstile) -> None:
    clients = [str(number) for number in range(ROOM_MIN)]
    found = [each for client in clients for each in await fill(turnstile, client)]
    assert (turnstile.serving, turnstile.waiting) == (1, 2 * ROOM_MIN)
    with pytest.raises(OverloadedError) as refused:
        turnstile.enter("another")
    assert refused.value.retry_after_s == RETRY_MAX_S
    assert turnstile.refused == len(clients) + 1
    await end(*found)


# Seen red without the reserve: the room that shrank had no place for whoever asks little.
async def test_a_room_that_shrinks_turns_nobody_away_who_asks_little(clock: Clock) -> None:
    turnstile = narrow(clock, 1)
    turnstile._service_s = 0.5 / 90  # room for ninety
    found = await fill(turnstile, "greedy")
    turnstile._service_s = 0.5 / 45
    assert turnstile._free_room < 0
    found += [await waiting(turnstile, "modest", []) for _ in range(OWN)]
    for client in ("greedy", "modest"):
        with pytest.raises(OverloadedError):
            turnstile.enter(client)
    await end(*found)


# Seen red with a threshold by the whole room instead of the free one: the first client took the last ticket.
async def test_one_client_alone_leaves_room_for_another(clock: Clock) -> None:
    turnstile = narrow(clock, 1)
    turnstile._service_s = 0.5 / 90  # room for ninety
    found = await fill(turnstile, "greedy")
    assert turnstile.waiting == 60
    found += [await waiting(turnstile, "modest", []) for _ in range(5)]
    with pytest.raises(OverloadedError):
        turnstile.enter("greedy")
    await end(*found)


# Seen red with first in, first out over all clients: the turns were ten times "a", and then "b".
async def test_the_question_of_a_second_client_comes_before_the_tenth_of_the_first(clock: Clock) -> None:
    turnstile, turns = narrow(clock, 1), list[str]()
    found = [await waiting(turnstile, "a", turns) for _ in range(5)]
    found += [await waiting(turnstile, "b", turns) for _ in range(3)]
    for _ in found:
        served = next(ticket for ticket, _ in found if ticket.state == "served")
        served.leave()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert turns == ["a", "a", "b", "a", "b", "a", "b", "a"]


# Seen red with a `wait` that does not leave when it is cancelled, and with one that forgets a turn that came meanwhile.
async def test_whoever_is_cancelled_at_any_moment_takes_nothing_along(clock: Clock) -> None:
    chance, turnstile = random.Random(7), narrow(clock, 3)
    turnstile._service_s = 0.001
    for _ in range(50):
        found = [await waiting(turnstile, chance.choice("abc"), []) for _ in range(40)]
        chance.shuffle(found)
        for ticket, task in found:
            if chance.random() < 0.5:
                task.cancel()
            else:
                ticket.leave()  # what it held is handed over, also to one that is cancelled before it runs again
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        await end(*found)
        assert (turnstile.serving, turnstile.waiting, bool(turnstile._queue)) == (0, 0, False)
        assert not turnstile._ahead_of


async def test_leaving_twice_frees_one_place(turnstile: Turnstile) -> None:
    ticket, task = await waiting(turnstile, "a", [])
    await task
    ticket.leave()
    ticket.leave()
    assert turnstile.serving == 0


# Seen red with a `wait` without a timeout: it hung.
async def test_a_turn_that_does_not_come_in_time_is_a_refusal(turnstile: Turnstile) -> None:
    found = [await waiting(turnstile, "a", [])]
    ticket = turnstile.enter("b")
    with pytest.raises(OverloadedError):
        await turnstile.wait(ticket, 0.0)
    assert turnstile.waiting == 0
    await end(*found)


async def test_an_operator_is_not_turned_away(turnstile: Turnstile) -> None:
    found = await fill(turnstile, "a")
    ticket = turnstile.enter_as_operator()
    ticket.leave()
    await end(*found)


# Seen red with `Retry-After` from the queue alone: a thousand were sent back to the same second.
async def test_the_more_are_refused_the_later_they_shall_ask_again(clock: Clock) -> None:
    turnstile = narrow(clock, 10)
    turnstile._service_s = 0.1  # a hundred a second
    found = await fill(turnstile, "a")
    told = []
    for _ in range(1000):
        with pytest.raises(OverloadedError) as refused:
            turnstile.enter("a")
        told.append(refused.value.retry_after_s or 0)
    assert told[0] == 1 and told[-1] == 11
    clock.now = 5.0
    with pytest.raises(OverloadedError) as refused:
        turnstile.enter("a")
    assert refused.value.retry_after_s == 1
    await end(*found)


# Seen red with a look that measures the loop's turn instead: it is short, whatever waits for its step.
async def test_the_limit_learns_how_long_a_question_waits_for_its_step() -> None:
    limit = ConcurrencyLimit()
    turnstile = Turnstile(limit, time.monotonic)
    ticket = turnstile.enter("a")
    busy = [asyncio.create_task(step_of(turnstile, 0.01)) for _ in range(20)]
    await asyncio.sleep(0)
    turnstile._look()
    await asyncio.gather(*busy)
    assert turnstile._measuring
    await turnstile._measuring
    assert limit.step_s > WEIGHT * 0.1
    ticket.leave()
    assert turnstile._looking
    turnstile._looking.cancel()


async def step_of(turnstile: Turnstile, seconds: float) -> None:
    await turnstile.pace.step()
    time.sleep(seconds)  # noqa: ASYNC251  work on the event loop
