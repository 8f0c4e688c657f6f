"""What reviewers do not see outside of a review either: how sure a record is that they still judge, and another's first verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.errors import ReviewUnavailableError
from audit.holding.hold import person_key
from audit.review.rubric import REVIEWERS

GIVING = "affidavit audit review give"

_SAMPLES = """
SELECT details -> 'sample' ->> 'sample' FROM public.audit_logs
WHERE endpoint = 'affidavit audit sample draw' AND outcome = 'recorded'
  AND details -> 'sample' -> 'records' @> jsonb_build_array(jsonb_build_object('log_id', %s::text))
"""
_VERDICTS = """
SELECT client_id, endpoint, (details ->> 'grounded', details ->> 'answers', details ->> 'harmful', details ->> 'personal_data')::text
FROM public.audit_logs
WHERE endpoint IN ('affidavit audit review give', 'affidavit audit review adjudicate') AND outcome = 'recorded' AND reason = %s
"""


@dataclass(frozen=True, slots=True)
class Blindness:
    """Reads in the auditor's role, on autocommit connections."""

    pool: AsyncConnectionPool

    async def still_judges(self, name: str, *, is_lead: bool, log_id: UUID) -> bool:
        """Whether this reviewer has this record of any sample still to judge."""
        for (sample_id,) in await self._read(_SAMPLES, str(log_id)):
            verdicts = await self._read(_VERDICTS, f"sample {sample_id} record {log_id}")
            if person_key(name) in {person_key(who) for who, *_ in verdicts}:
                continue
            scores = {said for _, endpoint, said in verdicts if endpoint == GIVING}
            is_decided = len(scores) == 1 or any(endpoint != GIVING for _, endpoint, _ in verdicts)
            if len(_givers(verdicts)) < REVIEWERS or (is_lead and not is_decided):
                return True
        return False

    async def hides(self, name: str, row: Mapping[str, Any]) -> bool:
        """Whether this row is a verdict of somebody else, and the second one is not on record yet."""
        details = row.get("details")
        if row["endpoint"] != GIVING or not isinstance(details, dict):
            return False
        if person_key(row.get("client_id") or "") == person_key(name):
            return False
        verdicts = await self._read(
            _VERDICTS, f"sample {details.get('sample')} record {details.get('record')}"
        )
        return len(_givers(verdicts)) < REVIEWERS

    async def _read(self, statement: str, value: str) -> list[tuple[Any, ...]]:
        """The driver's messages are not passed on: they may contain a row."""
        try:
            async with self.pool.connection() as connection:
                return await (await connection.execute(statement.encode(), (value,))).fetchall()
        except (psycopg.Error, PoolTimeout) as failure:
            raise ReviewUnavailableError(
                f"The database is unavailable ({type(failure).__name__}). Try again."
            ) from None


def _givers(verdicts: list[tuple[Any, ...]]) -> set[str]:
    return {person_key(who) for who, endpoint, _ in verdicts if endpoint == GIVING}
