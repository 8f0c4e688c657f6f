"""What an auditor is shown is what `verify` checks: whatever a superuser puts in between is named, and not shown in silence."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from audit.proof.keys import SigningKey
from engine import settings as settings_file
from engine.cli import doctor, main
from engine.storage.database import Database
from engine.wiring import differences_of, now
from tests.databases import empty_database, migrated_database
from tests.logs.archiving import archiver_of
from tests.logs.recorded import make_months
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog
from tests.logs.writers import ledger_on, trail

COUNT = "SELECT count(*) FROM audit_logs"
INSERT_LIKE_IT = (
    "INSERT INTO {} SELECT (jsonb_populate_record(l, jsonb_build_object("
    "'timestamp', '{}', 'log_id', gen_random_uuid()))).* FROM audit_logs l LIMIT 1"
)

# What a superuser does, and a word of what is said about it.
SHOWN_OTHERWISE = {
    "a schema named after the auditor": (
        (
            "CREATE SCHEMA affidavit_auditor; GRANT USAGE ON SCHEMA affidavit_auditor TO PUBLIC;"
            " CREATE VIEW affidavit_auditor.audit_logs AS SELECT * FROM public.audit_logs WHERE timestamp > '2025-02-01';"
            " GRANT SELECT ON affidavit_auditor.audit_logs TO PUBLIC"
        ),
        "affidavit_auditor.audit_logs is in a schema with the name of a login",
    ),
    "a replaced view": (
        (
            "CREATE OR REPLACE VIEW audit_questions WITH (security_invoker = true) AS SELECT timestamp, query_id, client_id, key_id,"
            " end_user, session_id, endpoint, book_id, source_mode, user_query_text, selected_text, filters, outcome, reason,"
            " 'nothing' AS answer_text, erased_at FROM audit_logs WHERE source_mode IS NOT NULL"
        ),
        "view public.audit_questions is not the one that was shipped",
    ),
    "a view with its owner's rights": (
        "ALTER VIEW audit_questions RESET (security_invoker)",
        "table public.audit_questions is not the one that was shipped",
    ),
    "a partition of 44 BC": (
        "CREATE TABLE old PARTITION OF audit_logs FOR VALUES FROM ('0044-03-01 BC') TO ('0044-04-01 BC');"
        + INSERT_LIKE_IT.format("old", "0044-03-15 12:00:00+00 BC"),
        "The partition public.old of the log",
    ),
    "a partition of 44 BC under the name of a month": (
        (
            "CREATE TABLE audit_logs_0044_03 PARTITION OF audit_logs FOR VALUES FROM ('0044-03-01 BC') TO ('0044-04-01 BC');"
            " INSERT INTO audit_months VALUES ('audit_logs_0044_03', '0044-03-01')"
        ),
        "The partition public.audit_logs_0044_03 of the log",
    ),
    "a partition up to infinity": (
        "CREATE TABLE late PARTITION OF audit_logs FOR VALUES FROM ('9998-01-01') TO (MAXVALUE);"
        + INSERT_LIKE_IT.format("late", "infinity"),
        "The partition public.late of the log",
    ),
    "a month whose last moment is none": (
        "SELECT audit_make_month('9999-12-01')",
        "The partition public.audit_logs_9999_12 of the log",
    ),
    "a default partition": (
        "CREATE TABLE rest PARTITION OF audit_logs DEFAULT",
        "The partition public.rest of the log, DEFAULT,",
    ),
    "a partition that is no plain table": (
        (
            "CREATE TABLE more PARTITION OF audit_logs FOR VALUES FROM ('2031-01-01') TO ('2031-02-01')"
            " PARTITION BY RANGE (timestamp)"
        ),
        "The partition public.more of the log",
    ),
    "row-level security": (
        (
            "ALTER TABLE audit_logs ENABLE ROW LEVEL SECURITY;"
            " CREATE POLICY few ON audit_logs FOR SELECT USING (timestamp > '2025-02-01')"
        ),
        "policy few on public.audit_logs does not belong there",
    ),
    "row-level security of one month": (
        "ALTER TABLE audit_logs_2025_01 ENABLE ROW LEVEL SECURITY",
        "The partition public.audit_logs_2025_01 of the log",
    ),
    "rows by inheritance": (
        "CREATE TABLE more () INHERITS (audit_erasures)",
        "The table public.more inherits from public.audit_erasures",
    ),
    "an operator that fits better": (
        (
            "CREATE FUNCTION public.never(varchar, varchar) RETURNS boolean LANGUAGE sql AS 'SELECT false';"
            " CREATE OPERATOR public.= (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = public.never)"
        ),
        "The operator public.=(character varying,character varying)",
    ),
    "a function that fits better": (
        "CREATE FUNCTION public.lower(varchar) RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$",
        "The function public.lower(character varying) has the name of one of PostgreSQL's own",
    ),
    "a function of PostgreSQL itself": (
        (
            "CREATE OR REPLACE FUNCTION pg_catalog.initcap(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS"
            " $$ BEGIN RETURN 'x'; END $$"
        ),
        "The function initcap(text) of PostgreSQL itself was replaced",
    ),
    "a cast": (
        (
            "CREATE FUNCTION public.as_text(uuid) RETURNS integer LANGUAGE sql AS 'SELECT 1';"
            " CREATE CAST (uuid AS integer) WITH FUNCTION public.as_text(uuid) AS IMPLICIT"
        ),
        "There is a cast from uuid to integer",
    ),
    "an index that lies": (
        (
            "CREATE FUNCTION public.compares(uuid, uuid) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';"
            " CREATE OPERATOR CLASS public.lies FOR TYPE uuid USING btree AS OPERATOR 3 =, FUNCTION 1 public.compares(uuid, uuid);"
            " CREATE INDEX lying ON audit_logs_2025_01 (query_id public.lies)"
        ),
        "The index public.lying of public.audit_logs_2025_01",
    ),
    "a rule": (
        "CREATE RULE nothing AS ON INSERT TO audit_anchors DO INSTEAD NOTHING",
        "rule nothing on public.audit_anchors does not belong there",
    ),
    "a trigger on every login": (
        (
            "CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.audit_logs (LIKE audit_logs);"
            " GRANT USAGE ON SCHEMA elsewhere TO PUBLIC; GRANT SELECT ON elsewhere.audit_logs TO PUBLIC;"
            " CREATE FUNCTION elsewhere.goes() RETURNS event_trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM set_config('search_path', 'elsewhere, public', false); END $$;"
            " CREATE EVENT TRIGGER goes ON login EXECUTE FUNCTION elsewhere.goes(); ALTER EVENT TRIGGER goes ENABLE ALWAYS"
        ),
        "The event trigger goes acts on every login",
    ),
    "a database of a later version": (
        "INSERT INTO schema_migrations VALUES ('9999_more.sql', repeat('0', 64))",
        "The migration 9999_more.sql does not belong there. Then the database is of another version of this program",
    ),
    "a database of an earlier version": (
        "DELETE FROM schema_migrations WHERE name LIKE '0022%'",
        "The migration 0022_readers.sql is missing. Then the database is of another version of this program",
    ),
    "a missing view": ("DROP VIEW audit_refusals", "view public.audit_refusals is missing"),
    "one more column": (
        "ALTER TABLE audit_erasures ADD COLUMN more text",
        "column public.audit_erasures.more does not belong there",
    ),
}
# These change nothing that a query of this program goes through.
SAID = {
    "a trigger that drops rows": (
        (
            "CREATE FUNCTION public.drops() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
            " CREATE TRIGGER aaa BEFORE INSERT ON audit_logs FOR EACH ROW EXECUTE FUNCTION public.drops()"
        ),
        "trigger aaa on public.audit_logs does not belong there",
    ),
    "a trigger that drops rows of a month": (
        (
            "CREATE FUNCTION public.drops() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
            " CREATE TRIGGER aaa BEFORE INSERT ON audit_logs_2025_02 FOR EACH ROW EXECUTE FUNCTION public.drops()"
        ),
        "The partition public.audit_logs_2025_02 of the log has not the triggers of a month",
    ),
    "no trigger that guards": (
        "ALTER TABLE audit_leaves DISABLE TRIGGER audit_leaves_keep",
        "trigger audit_leaves_keep on public.audit_leaves is not the one that was shipped",
    ),
    "another writer": (
        (
            "CREATE OR REPLACE FUNCTION audit_write(opened json, noted json, ended uuid[], closed json) RETURNS void"
            " LANGUAGE plpgsql AS $$ BEGIN END $$"
        ),
        "function public.audit_write(json,json,uuid[],json) is not the one that was shipped",
    ),
    "a path of everybody that leads elsewhere": (
        (
            "CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.audit_logs (LIKE audit_logs);"
            " GRANT USAGE ON SCHEMA elsewhere TO PUBLIC; GRANT SELECT ON elsewhere.audit_logs TO PUBLIC;"
            " DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = elsewhere, public', current_database()); END $$"
        ),
        "search_path=elsewhere, public is set for everybody in this database",
    ),
    "a path of the auditor": (
        (
            "DO $$ BEGIN EXECUTE format('ALTER ROLE affidavit_auditor IN DATABASE %I SET search_path = elsewhere, public',"
            " current_database()); END $$"
        ),
        "search_path=elsewhere, public is set for the role affidavit_auditor",
    ),
    "a right too many": (
        "GRANT UPDATE ON audit_leaves TO affidavit_engine",
        "rights public.audit_leaves is not the one that was shipped",
    ),
}
OF_THE_OPERATOR = {
    "months ahead": "SELECT audit_make_month('2033-05-01')",
    "a dashboard": (
        "CREATE SCHEMA dashboards; CREATE VIEW dashboards.audit_logs AS SELECT outcome FROM public.audit_logs;"
        " CREATE FUNCTION dashboards.lower(varchar) RETURNS text LANGUAGE sql AS $$ SELECT '' $$;"
        " CREATE VIEW public.answers_by_hour AS SELECT date_trunc('hour', timestamp) AS hour, count(*) FROM public.audit_logs GROUP BY 1"
    ),
    "an index": "CREATE INDEX faster ON audit_logs (client_id, timestamp)",
    "rights to read": "GRANT SELECT ON audit_logs TO pg_monitor",
    "settings of storage": "ALTER TABLE audit_leaves SET (autovacuum_vacuum_scale_factor = 0.01)",
}

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
async def whole(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    folder = tmp_path_factory.mktemp("shown")
    with migrated_database(database) as made:
        log = SealedLog(made, folder, SigningKey.create(folder / "signing.key"))
        with psycopg.connect(made.url) as connection:
            make_months(connection, (JANUARY, FEBRUARY))
        log.write(JANUARY, *range(3))
        log.write(FEBRUARY, *range(4))
        assert await log.seal() == {}
        yield log


@pytest.fixture
def url(database: Database, whole: SealedLog) -> Iterator[str]:
    """A copy, to be attacked."""
    with empty_database(database, str(conninfo_to_dict(whole.url)["dbname"])) as copy:
        yield copy


@pytest.fixture
def command(whole: SealedLog, url: str, capsys: pytest.CaptureFixture[str]) -> Command:
    settings = settings_file.load({"DATABASE_URL": url}, data_dir=whole.folder)

    def run(*words: str) -> tuple[int, str, str]:
        given = main.parser().parse_args(list(words))
        code = asyncio.run(given.run(settings, given))
        return code, *capsys.readouterr()

    return run


def act(url: str, statements: str) -> None:
    with psycopg.connect(url, options="-c timezone=UTC") as superuser:
        superuser.execute(statements.encode())


# Seen red with every one of them on the code before: the query was answered, and but for a few `verify` said VALID.
@pytest.mark.parametrize("attack", SHOWN_OTHERWISE)
def test_a_query_is_not_answered_by_something_else(command: Command, url: str, attack: str) -> None:
    statements, words = SHOWN_OTHERWISE[attack]
    act(url, statements)
    code, shown, said = command("audit", "query", COUNT)
    assert (code, shown) == (1, "")
    assert words in said
    for more in (COUNT, "--from", "2025-01-01"), ("SELECT timestamp FROM audit_logs", "--json"):
        code, shown, said = command("audit", "query", *more)
        assert (code, shown) == (1, "")
        assert words in said


# Seen red with every one of them but "one more column" and "row-level security" on the code before.
@pytest.mark.parametrize("attack", SHOWN_OTHERWISE | SAID)
def test_verify_names_it_and_is_not_valid(command: Command, url: str, attack: str) -> None:
    statements, words = (SHOWN_OTHERWISE | SAID)[attack]
    act(url, statements)
    code, shown, _ = command("audit", "verify")
    assert code == 1
    assert words in shown


async def test_doctor_names_it(whole: SealedLog, url: str) -> None:
    settings = settings_file.load({"DATABASE_URL": url}, data_dir=whole.folder)
    assert (await doctor._schema(settings, Database(url, settings)))[0] == "ok"
    statements, words = SHOWN_OTHERWISE["a replaced view"]
    act(url, statements)
    state, said = await doctor._schema(settings, Database(url, settings))
    assert state == "failed"
    assert words in said


@pytest.mark.parametrize("attack", SAID)
def test_what_changes_no_answer_is_said_beside_it(command: Command, url: str, attack: str) -> None:
    statements, words = SAID[attack]
    act(url, statements)
    code, shown, said = command("audit", "query", COUNT, "--json")
    assert (code, json.loads(shown)) == (0, [{"count": 7}])
    assert words in said


@pytest.mark.parametrize("title", OF_THE_OPERATOR)
def test_what_is_the_operators_own_is_no_difference(command: Command, url: str, title: str) -> None:
    act(url, OF_THE_OPERATOR[title])
    assert command("audit", "query", COUNT, "--json") == (0, '[{"count": 7}]\n', "")
    assert command("audit", "verify")[0] == 0


# Seen red with the trigger of a frozen month not among those of a month.
async def test_a_month_on_its_way_to_the_archive_and_back_is_no_difference(
    whole: SealedLog, url: str, tmp_path: Path
) -> None:
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    log = SealedLog(Database(url, whole.database.settings), tmp_path, whole.key)
    archiver = archiver_of(log, grace=timedelta(days=9))
    (outcome,) = await archiver.archive(FEBRUARY)
    assert (outcome.state, outcome.is_well) == ("detached", True), outcome
    assert differences_of(log.database) == []
    assert (await archiver.restore(JANUARY)).is_well
    assert differences_of(log.database) == []
    (outcome,) = [await archiver_of(log).end_restore(JANUARY)]
    assert outcome.is_well
    assert differences_of(log.database) == []


# Seen red with `_HIDDEN` left out: the count was of February alone, and nobody said so.
def test_a_month_that_is_in_no_table_and_no_archive_is_said(command: Command, url: str) -> None:
    act(url, "ALTER TABLE audit_logs DETACH PARTITION audit_logs_2025_01")
    code, shown, said = command("audit", "query", COUNT, "--json")
    assert (code, json.loads(shown)) == (0, [{"count": 4}])
    assert "The records of 2025-01 are neither in the log nor in a verified archive" in said


# Seen red without a pinned path: the writer called the other function, and the record was acknowledged and nowhere.
async def test_no_schema_of_the_writers_name_swallows_a_record(whole: SealedLog, url: str) -> None:
    act(
        url,
        "CREATE SCHEMA affidavit_engine; GRANT USAGE ON SCHEMA affidavit_engine TO PUBLIC;"
        " CREATE FUNCTION affidavit_engine.audit_write(json, json, uuid[], json) RETURNS void LANGUAGE sql AS ''",
    )
    asked = trail(user_query_text="Where does it go?")
    async with Database(url, whole.database.settings).pool("affidavit_engine", has_autocommit=True) as pool:
        ledger = ledger_on(pool)
        await ledger.start()
        await ledger.open(asked)
        await ledger.close(asked, now())
        await ledger.stop()
    with psycopg.connect(url) as superuser:
        found = superuser.execute("SELECT count(*) FROM public.audit_logs WHERE log_id = %s", (asked.log_id,))
        assert found.fetchone() == (1,)


# Seen red without these settings in the engine's addresses: `audit query` and the engine's own queries ended with a
# traceback, and `reason = NULL` counted rows.
async def test_defaults_of_a_database_for_dates_and_comparisons_change_no_answer(database: Database) -> None:
    with migrated_database(database) as own:
        for setting in ("datestyle = 'German'", "intervalstyle = 'iso_8601'", "transform_null_equals = on"):
            with psycopg.connect(own.url, autocommit=True) as connection:
                name = sql.Identifier(connection.info.dbname)
                connection.execute(sql.SQL("ALTER DATABASE {} SET ").format(name) + sql.SQL(setting))
        asked = "SELECT timestamptz '2026-05-11 00:00Z', interval '1 day', date '05/11/2026', count(*) WHERE NULL = NULL"
        _, rows = await own.read("affidavit_auditor", asked)
    assert rows == [(datetime(2026, 5, 11, tzinfo=UTC), timedelta(days=1), date(2026, 5, 11), 0)]
