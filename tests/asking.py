"""Questions put to the engine in this process, and generators and parts that do what a test wants."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.answer import Asked, Engine
from engine.house import House
from engine.models import Claim, Client, Draft, Question, RetrievedPassage
from engine.ports import NullExchange

OPERATOR = Client("tests", None, frozenset({"ask"}))
IMU = "What does an IMU measure?"


def asked(question: str = IMU, *, book: str = "physical-ai", **fields: Any) -> Asked:
    async def read() -> Question:
        return Question(question, book, 5)

    return replace(Asked("test", "r-1", NullExchange(read), operator=OPERATOR), **fields)


@dataclass
class Scripted:
    """A generator that does what a test tells it, and remembers that it was asked."""

    act: Callable[[Sequence[RetrievedPassage]], Awaitable[Draft]]
    name: str = "scripted"
    description: str = "scripted"
    calls: int = 0

    async def write(
        self, question: Question, evidence: Sequence[RetrievedPassage], draft: Draft
    ) -> AsyncGenerator[Claim, None]:
        self.calls += 1
        made = await self.act(evidence)
        draft.raw, draft.is_complete, draft.confidence = made.raw, made.is_complete, made.confidence
        for claim in made.claims:
            yield claim

    async def close(self) -> None: ...


def draft(*claims: Claim, **fields: Any) -> Draft:
    return replace(Draft("scripted", list(claims), is_complete=True), **fields)


def with_generator(
    house: House, act: Callable[[Sequence[RetrievedPassage]], Awaitable[Draft]], **rules: Any
) -> tuple[Engine, Scripted]:
    generator = Scripted(act)
    engine = replace(house.engine, generator=generator, rules=replace(house.engine.rules, **rules))
    return engine, generator


@dataclass
class Broken:
    """Any part that fails in a given way."""

    failure: Exception

    async def fail(self, *_: Any) -> Any:
        raise self.failure

    authenticate = admit = live = passages = fail

    async def write(self, *_: Any) -> AsyncGenerator[Claim, None]:
        yield await self.fail()
