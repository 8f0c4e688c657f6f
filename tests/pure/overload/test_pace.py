"""In a turn of the event loop there is one long step of a question, whatever their number; in order, and nobody is forgotten."""

import asyncio

from engine.admission.overload.pace import Pace

QUESTIONS = 5


class Turns:
    """Numbers the turns of the event loop, until it is stopped."""

    def __init__(self) -> None:
        self.now = 0
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.now += 1
        self._next = self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._next.cancel()


async def stepped(pace: Pace, questions: int) -> list[tuple[int, int]]:
    """Each question with the turn of its step."""
    turns, found = Turns(), []

    async def ask(number: int) -> None:
        await pace.step()
        found.append((number, turns.now))

    await asyncio.gather(*(ask(number) for number in range(questions)))
    turns.stop()
    return found


# Seen red with a `_go_on` that lets all in who wait.
async def test_each_turn_has_one_step_and_they_come_in_order() -> None:
    found = await stepped(Pace(), QUESTIONS)
    assert [number for number, _ in found] == list(range(QUESTIONS))
    assert len({turn for _, turn in found}) == QUESTIONS


async def test_whoever_is_alone_does_not_wait() -> None:
    pace = Pace()
    step = pace.step()
    try:
        step.send(None)
    except StopIteration:
        return
    raise AssertionError("It waited.")


# Seen red with a `_go_on` that gives the turn to whoever has gone: the others waited for ever.
async def test_who_gives_up_takes_no_turn_from_the_others() -> None:
    pace = Pace()
    await pace.step()
    gone = [asyncio.create_task(pace.step()) for _ in range(QUESTIONS)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await asyncio.wait_for(pace.step(), 5.0)


# Seen red without `_is_taken = False`.
async def test_after_a_turn_without_a_step_nobody_waits_again() -> None:
    pace = Pace()
    await stepped(pace, QUESTIONS)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await test_whoever_is_alone_does_not_wait()
    assert not pace._is_taken
