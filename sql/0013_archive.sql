-- Months that leave for the vault: how far each is, the keys of their personal columns, and what keeps a month that nobody
-- has read back from the vault from being dropped.
SET LOCAL ROLE affidavit_owner;

-- A month's newest step is its state. Insert-only, and each row is written after what it says was done.
CREATE TABLE audit_archives (
    step             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    month            date NOT NULL CHECK (extract(day FROM month) = 1),
    state            text NOT NULL
        CHECK (state IN ('frozen', 'uploaded', 'verified', 'detached', 'dropped', 'restored')),
    at               timestamptz NOT NULL DEFAULT clock_timestamp(),
    rows             bigint NOT NULL,
    manifest_key     text,
    manifest_version text,
    manifest_sha256  text,
    CHECK (state = 'frozen' OR (manifest_key IS NOT NULL AND manifest_version IS NOT NULL AND manifest_sha256 IS NOT NULL))
);
CREATE INDEX audit_archives_month ON audit_archives (month, step);
CREATE TRIGGER audit_archives_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_archives
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_evidence_change();

-- What opens an archived record's personal columns. Never archived itself: who is forgotten loses the key, and the bytes
-- in the vault, which nobody can delete, say nothing any more.
CREATE TABLE audit_row_keys (
    log_id   uuid PRIMARY KEY,
    query_id uuid NOT NULL,
    month    date NOT NULL,
    key      bytea NOT NULL CHECK (octet_length(key) = 32),
    subject  bytea                     -- whose record it is, for who knows the name and the pepper; null: nobody's
);
CREATE INDEX audit_row_keys_query_id ON audit_row_keys (query_id);
CREATE INDEX audit_row_keys_subject ON audit_row_keys (subject);
CREATE INDEX audit_row_keys_month ON audit_row_keys (month);

-- Without it a subject is guessed from a list of names.
CREATE TABLE audit_pepper (
    pepper bytea NOT NULL CHECK (octet_length(pepper) = 32)
);
CREATE UNIQUE INDEX audit_pepper_one ON audit_pepper ((true));
INSERT INTO audit_pepper
SELECT sha256(string_agg(uuid_send(gen_random_uuid()), ''::bytea)) FROM generate_series(1, 4);  -- 488 random bits

-- The log's tables by their identity, so that a renamed one is guarded too; no month: the log itself. A dump writes names.
CREATE TABLE audit_months (
    relation regclass PRIMARY KEY,
    month    date
);

-- As in 0004, and: the month is guarded, and one that has begun to leave is not made again.
CREATE OR REPLACE FUNCTION audit_make_month(month date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    first_day date := date_trunc('month', month)::date;
    partition text := 'audit_logs_' || to_char(first_day, 'YYYY_MM');
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('audit_make_month'));
    IF EXISTS (SELECT FROM audit_archives a WHERE a.month = first_day) THEN
        RAISE EXCEPTION 'this month is archived' USING ERRCODE = 'AF001';
    END IF;
    IF to_regclass(partition) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE audit_logs INCLUDING ALL)', partition);
    EXECUTE format('CREATE TRIGGER audit_logs_keep_all BEFORE TRUNCATE ON %I
                    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_change()', partition);
    EXECUTE format('ALTER TABLE audit_logs ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', partition,
                   to_char(first_day, 'YYYY-MM-DD') || ' 00:00:00+00',
                   to_char(first_day + interval '1 month', 'YYYY-MM-DD') || ' 00:00:00+00');
    EXECUTE format('GRANT SELECT ON %I TO affidavit_auditor, affidavit_archiver', partition);
    INSERT INTO audit_months VALUES (to_regclass(partition), first_day);
    RETURN true;
END
$$;

-- Whether the log holds these very rows, in a table or, since they are sealed, in an archive.
CREATE OR REPLACE FUNCTION audit_holds(rows json) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
BEGIN ATOMIC
    SELECT coalesce(bool_and(EXISTS (
        SELECT FROM audit_logs l
        WHERE l.log_id = r.log_id AND l.timestamp = r.timestamp AND l.leaf_hash = r.leaf_hash)
        OR EXISTS (
        SELECT FROM audit_leaves s
        WHERE s.log_id = r.log_id AND s.leaf_hash = r.leaf_hash
          AND s.month IN (SELECT a.month FROM audit_archives a))), true)
    FROM json_to_recordset(rows) AS r(log_id uuid, timestamp timestamptz, leaf_hash bytea);
END;

-- On each row: a trigger on the statement would not see what comes through the log.
CREATE FUNCTION audit_refuse_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'this month is archived' USING ERRCODE = 'AF001';
END
$$;

INSERT INTO audit_months SELECT 'audit_logs', NULL;
INSERT INTO audit_months
SELECT c.oid, to_date(right(c.relname, 7), 'YYYY_MM') FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
WHERE inhparent = 'audit_logs'::regclass;

GRANT SELECT ON audit_archives TO affidavit_engine, affidavit_sealer, affidavit_auditor, affidavit_archiver;
GRANT INSERT ON audit_archives TO affidavit_archiver;
GRANT SELECT, INSERT, DELETE ON audit_row_keys TO affidavit_archiver;
GRANT SELECT ON audit_pepper, audit_months TO affidavit_archiver;
GRANT SELECT ON audit_months TO affidavit_auditor;
GRANT SELECT (log_id, month) ON audit_row_keys TO affidavit_auditor;  -- whether there is a key, and never the key
GRANT SELECT ON audit_logs, audit_leaves, audit_checkpoints, audit_anchors, audit_keys, audit_origin TO affidavit_archiver;
GRANT SELECT (log_id, opened_at) ON audit_open TO affidavit_archiver;
DO $$
DECLARE
    guarded record;
BEGIN
    FOR guarded IN SELECT relation FROM audit_months WHERE month IS NOT NULL LOOP  -- also when it is detached
        EXECUTE format('GRANT SELECT ON %s TO affidavit_archiver', guarded.relation);
    END LOOP;
END
$$;

-- From here on as whoever migrates: nobody of the house may change the guard.
RESET ROLE;

-- A month is detached and dropped by the owner of its table; the archiver may become that, and is not by itself.
DO $$
BEGIN
    IF (SELECT rolinherit FROM pg_roles WHERE rolname = 'affidavit_archiver') THEN
        ALTER ROLE affidavit_archiver NOINHERIT;
    END IF;
    IF NOT pg_has_role('affidavit_archiver', 'affidavit_owner', 'MEMBER') THEN
        GRANT affidavit_owner TO affidavit_archiver;
    END IF;
END
$$;

-- A table of the log goes only when its month was read back from the vault and found whole; the log itself never does,
-- and no column of it. In a schema of its own: who drops the schema of the log would else drop the guard before it acts.
CREATE SCHEMA audit_guard;
CREATE FUNCTION audit_guard.refuse_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    guarded record;
BEGIN
    IF to_regclass('public.audit_months') IS NULL OR to_regclass('public.audit_archives') IS NULL THEN
        RAISE EXCEPTION 'what says which months are archived stays' USING ERRCODE = 'insufficient_privilege';
    END IF;
    FOR guarded IN
        SELECT d.object_identity, d.objsubid, m.month
        FROM pg_event_trigger_dropped_objects() d JOIN public.audit_months m ON m.relation = d.objid
        WHERE d.classid = 'pg_class'::regclass
    LOOP
        IF guarded.objsubid <> 0 OR guarded.month IS NULL OR NOT EXISTS (
            SELECT FROM public.audit_archives a WHERE a.month = guarded.month AND a.state = 'verified')
        THEN
            RAISE EXCEPTION '% holds records of the log that no verified archive holds, and stays',
                guarded.object_identity USING ERRCODE = 'insufficient_privilege';
        END IF;
    END LOOP;
END
$$;
REVOKE EXECUTE ON FUNCTION audit_guard.refuse_drop FROM PUBLIC;

DO $$
BEGIN
    CREATE EVENT TRIGGER audit_refuse_drop ON sql_drop EXECUTE FUNCTION audit_guard.refuse_drop();
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE WARNING 'The log''s months are not guarded against being dropped: only a superuser may create an event trigger. '
            'To have the guard, let one run: CREATE EVENT TRIGGER audit_refuse_drop ON sql_drop EXECUTE FUNCTION audit_guard.refuse_drop()';
END
$$;
