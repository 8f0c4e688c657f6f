"""What widgets look up beside their questions: `/health` and `/api/health` before they show themselves, and `/chapters`."""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from engine.house import ANSWERING, READY, House
from engine.retrieval.library import Chapter

HEALTH = ("/health", "/api/health")
CHAPTERS = "/chapters"

GOOD_S = 1.0  # for which good news is not looked for again

Health = Literal["healthy", "degraded", "unhealthy"]

_READY: dict[str, Any] = dict.fromkeys(("database", "book", "embedder", "records"), READY)


class HealthBody(BaseModel):
    """`healthy`; `degraded`: questions are answered, but a part is missing; `unhealthy`: they are not."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"status": "healthy", "timestamp": "2026-01-15T10:30:00Z", "services": _READY}]
        }
    )

    status: Health
    timestamp: datetime
    services: dict[str, str]


class ChapterBody(BaseModel):
    id: str
    title: str
    sections: list[str]
    url: str


class ChaptersBody(BaseModel):
    """The chapters of the default book, each with the headings that its passages begin under."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "chapters": [
                        {
                            "id": "03-sensors-and-state-estimation", "title": "Sensors and state estimation",
                            "sections": ["Inertial measurement units"], "url": "/docs/sensors",
                        }
                    ],
                    "total_count": 1,
                }
            ]
        }
    )  # fmt: skip

    chapters: list[ChapterBody]
    total_count: int


class Readiness:
    """Looks at the parts once, however many ask meanwhile, and once a second as long as all is well: anybody may ask, without a
    key, and each look costs an embedding, which a vendor may charge for. Bad news is not kept, so that an end of it is told."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._good_until_s = 0.0
        self._looking: asyncio.Task[dict[str, str]] | None = None

    async def parts(self, house: House) -> dict[str, str]:
        is_fresh = self._looking and (not self._looking.done() or self._monotonic() < self._good_until_s)
        if self._looking is None or not is_fresh:
            self._looking = asyncio.create_task(self._look(house))
        return await asyncio.shield(self._looking)  # whoever asked first may leave first

    async def _look(self, house: House) -> dict[str, str]:
        self._good_until_s = 0.0
        parts = await house.parts()
        if status_of(parts) == "healthy":
            self._good_until_s = self._monotonic() + GOOD_S
        return parts


async def health(house: House, readiness: Readiness) -> HealthBody:
    parts = await readiness.parts(house)
    return HealthBody(status=status_of(parts), timestamp=house.engine.clock(), services=parts)


def status_of(parts: dict[str, str]) -> Health:
    states = set(parts.values())
    if states == {READY}:
        return "healthy"
    return "degraded" if states <= ANSWERING else "unhealthy"


def contents(chapters: list[Chapter]) -> ChaptersBody:
    said = [
        ChapterBody(
            id=chapter.chapter_id, title=chapter.title, sections=list(chapter.sections), url=chapter.url
        )
        for chapter in chapters
    ]
    return ChaptersBody(chapters=said, total_count=len(said))
