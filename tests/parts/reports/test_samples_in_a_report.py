"""A report on review counts each population that was stated, and not only the samples that somebody put on record."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from audit.checking.evidence import Period
from audit.ledger.partitions import month_start
from audit.query.tiers import QueryLimits, TieredLog
from audit.reports.as_of import AsOf
from audit.reports.measuring import Measuring
from audit.reports.pack import pack_of
from engine import wiring
from engine.storage.database import AUDITOR, Database, as_role
from tests.logs.reviewing import make_present, sampled, stated
from tests.logs.sealed_log import SealedLog, quiet, sealed_log


def status(log: SealedLog) -> tuple[str, int, int]:
    begin = month_start(wiring.now().date().replace(day=1))
    period = AsOf(begin, wiring.now() + timedelta(seconds=1), datetime.now(UTC))
    months = Period(*map(month_start, period.months))
    ample = QueryLimits(seconds=300.0, bytes_max=2**30)
    tiers = TieredLog(as_role(log.url, AUDITOR), log.vault, wiring.shipped_definitions(), ample, months)
    found = Measuring(tiers, "test", quiet).measure(pack_of("review"), period, "event")
    (judged,) = (each.judged for each in found.controls if each.control.id == "review-samples")
    return judged.status, judged.counted, judged.violations


# Seen red with the rows of draws alone.
async def test_a_population_that_was_stated_and_never_drawn_is_a_violation(
    database: Database, tmp_path: Path
) -> None:
    async with sealed_log(database, tmp_path) as log:
        make_present(log)
        await sampled(log)
        assert await log.seal() == {}
        assert status(log) == ("met", 1, 0)
        await stated(log)
        assert await log.seal() == {}
        assert status(log) == ("not met", 1, 1)
