"""Nobody chooses a sample: not its seed, not its population, and not afterwards."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from audit.anchored import month_anchors, note_key, read
from audit.errors import ReviewRefusedError, SampleError
from audit.review.sample import Sample, draw, read_sample, state
from audit.review.sampling import Sampling
from engine import wiring
from engine.storage.database import Database
from tests.logs.archiving import archiver_of, tables
from tests.logs.reviewing import (
    ADA,
    ALL,
    LIN,
    RIGHT,
    WRONG,
    make_present,
    reviewing,
    sampled,
    sampling,
    stated,
)
from tests.logs.sealed_log import EVER, FEBRUARY, JANUARY, SealedLog, sealed_log
from tests.second_draw import redraw

MARCH = date(2025, 3, 1)
UNTIL = datetime(2025, 2, 10, 12, 6, tzinfo=UTC)


@pytest.fixture(scope="module")
async def whole(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    """Besides the 17 answers: two refusals, and what is no question."""
    async with sealed_log(database, tmp_path_factory.mktemp("sampled")) as made:
        make_present(made)
        made.write(FEBRUARY, 12, 13, outcome="refused", reason="not_covered", confidence_level=None)
        made.write(FEBRUARY, 14, outcome="served", source_mode=None)
        made.write(FEBRUARY, 15, outcome="failed")
        assert await made.seal() == {}
        made.keep()
        yield made


@pytest.fixture
def log(whole: SealedLog) -> Iterator[SealedLog]:
    yield whole
    whole.restore()


def population(log: SealedLog) -> dict[str, list[str | None]]:
    """Read by another query than the sampler's."""
    with psycopg.connect(log.url) as connection:
        found = connection.execute(
            "SELECT log_id::text, reason, confidence_level, book_id FROM audit_logs"
            " JOIN audit_leaves USING (log_id) WHERE outcome IN ('answered', 'refused') AND source_mode IS NOT NULL"
            " ORDER BY month, leaf_index"
        )
        return {log_id: stratum for log_id, *stratum in found}


def doubts(log: SealedLog, sample: Sample) -> list[str]:
    with sampling(log) as reader:
        return reader.doubts(sample)


async def test_anybody_draws_the_same_sample(log: SealedLog) -> None:
    sample = await sampled(log)
    assert len(sample.records) == 6
    assert redraw(sample.file(), population(log)) == sample.as_json()["records"]
    assert doubts(log, read_sample(sample.file())) == []
    assert log.inspect().verdict == "VALID"


async def test_only_sealed_questions_of_the_period_are_drawn(log: SealedLog) -> None:
    log.write(FEBRUARY, 16)  # it is not sealed
    sample = await sampled(
        log, replace(ALL, since=datetime(2025, 2, 10, 12, 3, tzinfo=UTC), until=UNTIL, size=60)
    )
    assert {str(each.log_id) for each in sample.records} == {
        log.log_id(FEBRUARY, place) for place in (3, 4, 5)
    }
    assert [head["month"] for head in sample.statement["heads"]] == ["2025-02"]


async def test_there_is_no_seed_before_the_population_is_in_an_anchored_head(log: SealedLog) -> None:
    sample_id = await stated(log)
    with sampling(log) as reader:
        assert reader.draw(sample_id) is None
        assert await log.seal() == {}
        first = reader.draw(sample_id)
    log.write(FEBRUARY, 16)
    await stated(log)
    assert await log.seal() == {}
    with sampling(log) as reader:
        assert reader.draw(sample_id) == first, "A later head is another seed: the first one counts"


# Seen red with a check that only asked whether there is such a head.
async def test_a_seed_from_before_the_population_is_refused(log: SealedLog) -> None:
    sample = await sampled(log)
    chain = month_anchors(log.vault, FEBRUARY).chain()
    with sampling(log) as reader:
        chosen = drawn_with(reader, sample, read(log.vault, chain.key(8)).decode())
    assert chosen.records != sample.records
    assert any("chosen" in doubt for doubt in doubts(log, chosen))


async def test_a_seed_from_a_later_head_is_refused(log: SealedLog) -> None:
    sample = await sampled(log)
    month = make_present(log)
    await stated(log)
    assert await log.seal() == {}
    chain = month_anchors(log.vault, month).chain()
    with sampling(log) as reader:
        chosen = drawn_with(reader, sample, read(log.vault, chain.key(chain.sizes[-1])).decode())
    assert any("chosen" in doubt for doubt in doubts(log, chosen))


def drawn_with(reader: Sampling, sample: Sample, head: str) -> Sample:
    """As somebody draws who prefers this head."""
    records = reader._population(
        ALL, reader._newest_heads(replace(ALL, until=datetime(2025, 3, 1, tzinfo=UTC)))
    )
    return draw(sample.sample_id, sample.statement, sample.leaf_index, head, records)


# Seen red with the digest of the whole note as the seed.
async def test_a_writer_of_the_vault_cannot_look_for_a_seed(log: SealedLog) -> None:
    sample = await sampled(log)
    month = make_present(log)
    chain = month_anchors(log.vault, month).chain()
    path = log.folder / "vault" / chain.key(chain.sizes[-1])
    before = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(before + "— stranger AAAAAAE=\n".encode())
    try:
        with sampling(log) as reader:
            again = reader.draw(sample.sample_id)
        assert again and again.head != sample.head
        assert (again.seed, again.records) == (sample.seed, sample.records)
        assert doubts(log, sample) == []
    finally:
        path.write_bytes(before)


async def test_a_population_that_was_stated_and_not_drawn_stays_named(log: SealedLog) -> None:
    other_days = replace(ALL, until=datetime(2025, 2, 1, tzinfo=UTC), size=2)
    disliked = await stated(log, other_days)
    chosen = (await sampled(log)).sample_id
    last = (await sampled(log, replace(ALL, since=datetime(2025, 2, 1, tzinfo=UTC)))).sample_id
    with sampling(log) as reader:
        assert [(each.sample_id, each.is_drawn) for each in reader.others(chosen)] == [
            (disliked, False),
            (last, True),
        ]
        assert [each.sample_id for each in reader.others(last)] == [chosen], "It has no day of the first"
    async with reviewing(log) as reviews:
        assert [each.sample_id for each in await reviews.others(disliked)] == [chosen]


@pytest.mark.parametrize("change", ["seed", "records", "statement", "place", "size"])
async def test_a_file_that_is_not_what_the_log_gives_is_named(log: SealedLog, change: str) -> None:
    sample = await sampled(log)
    changed = {
        "seed": replace(sample, seed=bytes(32)),
        "records": replace(sample, records=sample.records[::-1]),
        "statement": replace(sample, statement=sample.statement | {"to": "2030-01-01T00:00:00.000000Z"}),
        "place": replace(sample, leaf_index=sample.leaf_index + 1),
        "size": replace(sample, statement=sample.statement | {"size": 7}),
    }[change]
    assert doubts(log, changed) != []


# Seen red without the comparison with the digest that was stated.
@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE audit_logs SET confidence_level = 'high' WHERE log_id = %(log_id)s",
        "UPDATE audit_logs SET outcome = 'failed' WHERE log_id = %(log_id)s",
        "DELETE FROM audit_logs WHERE log_id = %(log_id)s",
        "UPDATE audit_logs SET book_id = NULL WHERE log_id = %(log_id)s",
    ],
)
async def test_no_row_of_the_population_changes_in_silence(log: SealedLog, attack: str) -> None:
    sample = await sampled(log)
    drawn = {str(each.log_id) for each in sample.records}
    others = [log.log_id(JANUARY, place) for place in range(5) if log.log_id(JANUARY, place) not in drawn]
    log.attack(attack, log_id=others[0])
    assert any("does not have the population" in doubt for doubt in doubts(log, sample))
    assert log.inspect().verdict in {"TAMPERED", "MISSING"}


async def test_a_population_on_record_cannot_be_stated_anew(log: SealedLog) -> None:
    """A superuser who changes the statement does not change the digest in its reason."""
    sample_id = await stated(log)
    assert await log.seal() == {}
    log.attack(
        """UPDATE audit_logs SET details = jsonb_set(details, '{statement,size}', '9') WHERE log_id = %(log_id)s""",
        log_id=sample_id,
    )
    with sampling(log) as reader, pytest.raises(SampleError, match="erased or changed"):
        reader.draw(sample_id)


async def test_a_head_that_the_vault_does_not_have_is_named(log: SealedLog) -> None:
    sample = await sampled(log)
    (log.folder / "vault" / note_key(JANUARY, 5)).unlink()
    assert any("The vault has no head of 2025-01" in doubt for doubt in doubts(log, sample))


async def test_a_sample_that_is_on_record_is_not_recorded_again(log: SealedLog) -> None:
    sample = await sampled(log)
    async with reviewing(log) as reviews:
        await reviews.keep(sample)
        assert [each.sample_id for each in await reviews.samples()] == [sample.sample_id]


def test_an_unknown_sample_is_not_drawn(log: SealedLog) -> None:
    with sampling(log) as reader, pytest.raises(SampleError, match="no sample"):
        reader.draw(uuid4())


def test_a_stratum_too_many_is_said_before_anything_is_on_record(log: SealedLog) -> None:
    with sampling(log) as reader, pytest.raises(SampleError, match="2 strata"):
        reader.state(replace(ALL, size=1))


def test_the_statement_names_heads_counts_and_digest(log: SealedLog) -> None:
    with sampling(log) as reader:
        statement = reader.state(ALL)
        heads = reader._newest_heads(ALL)
        again = state(ALL, statement["origin"], heads, reader._population(ALL, heads))
    assert statement == again
    assert [count for _, count in statement["counts"]] == [2, 17]


async def test_a_sample_stays_what_it_was_when_its_months_are_archived(
    database: Database, tmp_path: Path
) -> None:
    async with sealed_log(database, tmp_path) as log:
        make_present(log)
        sample = await sampled(log)
        assert [outcome.state for outcome in await archiver_of(log).archive(MARCH)] == ["dropped", "dropped"]
        assert "audit_logs_2025_01" not in tables(log)
        with wiring.open_sampling(log.database.settings, log.database, log.keys) as reader:
            assert reader.doubts(sample) == []
            assert reader.draw(sample.sample_id) == sample


# Seen red without the look at the archives: nobody had judged anything.
async def test_no_verdict_is_given_or_counted_while_others_are_archived(
    database: Database, tmp_path: Path
) -> None:
    async with sealed_log(database, tmp_path) as log:
        month = make_present(log)
        sample = await sampled(log)
        async with reviewing(log) as reviews:
            await reviews.give(ADA, sample.records[0].log_id, RIGHT)
        assert await log.seal() == {}
        await archiver_of(log).archive(MARCH)
        async with reviewing(log) as reviews:
            assert (await reviews.queue()).report().open == 6, "Months before the sample have no verdicts"
            log.attack(
                "INSERT INTO audit_archives (month, state, rows, manifest_key, manifest_version, manifest_sha256)"
                " VALUES (%(month)s, 'detached', 1, 'k', 'v', 's')",
                month=month,
            )
            with pytest.raises(
                ReviewRefusedError, match=f"bring {month:%Y-%m} back with `affidavit audit restore`"
            ):
                await reviews.queue()
            with pytest.raises(ReviewRefusedError, match="audit restore"):
                await reviews.give(ADA, sample.records[0].log_id, RIGHT)


async def test_verdicts_are_read_beside_the_archive_that_has_their_records(
    database: Database, tmp_path: Path
) -> None:
    async with sealed_log(database, tmp_path) as log:
        make_present(log)
        first, second, *_ = (each.log_id for each in (await sampled(log)).records)
        async with reviewing(log) as reviews:
            await reviews.give(ADA, first, RIGHT)
            await reviews.give(LIN, first, WRONG)
            await reviews.give(ADA, second, WRONG)
        await archiver_of(log).archive(MARCH)
        asked = (
            "SELECT reviewer, kind, grounded, outcome, confidence_level FROM audit_reviews ORDER BY given_at"
        )
        with wiring.open_tiers(log.database.settings, log.database, EVER, is_open=False) as tiers:
            found = tiers.query(asked)
    assert found.opened == [JANUARY, FEBRUARY]
    assert found.rows == [
        ("ada", "review", "yes", "answered", "low"), ("lin", "review", "no", "answered", "low"),
        ("ada", "review", None, "answered", "low"),
    ]  # fmt: skip
