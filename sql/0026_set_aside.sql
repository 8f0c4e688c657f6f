-- Rows and open requests that the engine did not sign are never sealed, so they would hold up their month's archive and the
-- erasure of whom they name for ever. They are set aside: out of the log, without what is personal in them, with an event.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE audit_set_aside (
    log_id       uuid NOT NULL,
    timestamp    timestamptz NOT NULL,
    kept         jsonb NOT NULL,        -- the row as it was, without its personal columns and its salt
    set_aside_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    event        uuid NOT NULL          -- the record of the log that documents it
);
CREATE TRIGGER audit_set_aside_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_set_aside
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_evidence_change();
GRANT SELECT ON audit_set_aside TO affidavit_auditor, affidavit_archiver;
GRANT SELECT ON audit_open TO affidavit_archiver;  -- whether the engine signed them

-- As in 0014, and a second way past it: a row without a leaf that was set aside.
CREATE OR REPLACE FUNCTION audit_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND TG_LEVEL = 'ROW' AND current_user = 'affidavit_owner' THEN
        IF audit_is_erased(to_jsonb(OLD), to_jsonb(NEW)) THEN
            RETURN NEW;
        END IF;
    END IF;
    IF TG_OP = 'DELETE' AND TG_LEVEL = 'ROW' AND current_user = 'affidavit_owner' THEN
        IF EXISTS (SELECT FROM audit_set_aside s WHERE s.log_id = OLD.log_id AND s.timestamp = OLD.timestamp)
           AND NOT EXISTS (SELECT FROM audit_leaves l WHERE l.log_id = OLD.log_id) THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'audit_logs is insert-only: % is refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;

-- The rows without a leaf that are older than this: those that name one of these readers or answer one of these queries;
-- if `who` is null, all.
DROP FUNCTION audit_unsealed_of(text[], uuid[], timestamptz);
CREATE FUNCTION audit_unsealed_of(who text[], queries uuid[], until timestamptz)
RETURNS TABLE (log_id uuid, "timestamp" timestamptz, leaf_hash bytea, schema_version integer, signature bytea)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    source regclass;
BEGIN
    FOR source IN SELECT * FROM audit_tables() LOOP
        RETURN QUERY EXECUTE format(
            'SELECT l.log_id, l.timestamp, l.leaf_hash, l.schema_version::integer, l.signature FROM %s l
             WHERE erased_at IS NULL AND l.timestamp < $3 AND ($1 IS NULL OR end_user = ANY ($1) OR query_id = ANY ($2))
               AND NOT EXISTS (SELECT FROM audit_leaves s WHERE s.log_id = l.log_id)', source)
        USING who, queries, until;
    END LOOP;
END
$$;

-- Set these rows and open requests aside, and return them as they were. The caller has found that the engine did not sign them.
CREATE FUNCTION audit_put_aside(unsigned json, opened uuid[], event uuid) RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = public, pg_temp SET timezone = 'UTC' SET bytea_output = 'hex' AS $$
DECLARE
    named text := 'JOIN json_to_recordset($1) AS r(log_id uuid, "timestamp" timestamptz) ON r.log_id = l.log_id AND r.timestamp = l.timestamp';
    source regclass;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM audit_lock('erasure');
    FOR source IN SELECT * FROM audit_tables() LOOP
        RETURN QUERY EXECUTE format('SELECT to_jsonb(l) FROM %s l %s', source, named) USING unsigned;
        EXECUTE format(
            'INSERT INTO audit_set_aside (log_id, timestamp, kept, event)
             SELECT l.log_id, l.timestamp, to_jsonb(l) - audit_personal_columns() - ''salt'', $2 FROM %s l %s', source, named)
        USING unsigned, event;
        EXECUTE format(
            'DELETE FROM %s l USING json_to_recordset($1) AS r(log_id uuid, "timestamp" timestamptz)
             WHERE r.log_id = l.log_id AND r.timestamp = l.timestamp', source) USING unsigned;
    END LOOP;
    RETURN QUERY SELECT to_jsonb(o) FROM audit_open o WHERE o.log_id = ANY (opened);
    -- Whoever forges one may leave anything in it: what is no object has no columns that could be told from personal ones.
    INSERT INTO audit_set_aside (log_id, timestamp, event, kept)
    SELECT o.log_id, o.opened_at, event,
           to_jsonb(o) || jsonb_build_object(
               'trail', CASE jsonb_typeof(o.trail) WHEN 'object' THEN o.trail - audit_personal_columns() END)
    FROM audit_open o WHERE o.log_id = ANY (opened);
    DELETE FROM audit_open o WHERE o.log_id = ANY (opened);
END
$$;

REVOKE EXECUTE ON FUNCTION audit_unsealed_of, audit_put_aside FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_unsealed_of, audit_put_aside TO affidavit_archiver;

-- As in 0022. A superuser may delete the rows of audit_locks, and without them nothing would be sealed again: they come back.
CREATE OR REPLACE FUNCTION audit_lock(wanted text, waits boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF wanted NOT IN ('anchor', 'claim', 'erasure', 'month', 'seal') THEN
        RAISE EXCEPTION 'there is no lock %', wanted;
    END IF;
    IF NOT EXISTS (SELECT FROM audit_locks WHERE name = wanted) THEN
        INSERT INTO audit_locks VALUES (wanted) ON CONFLICT DO NOTHING;
    END IF;
    IF waits THEN
        PERFORM FROM audit_locks WHERE name = wanted FOR UPDATE;
    ELSE
        PERFORM FROM audit_locks WHERE name = wanted FOR UPDATE SKIP LOCKED;
    END IF;
    RETURN FOUND;
END
$$;
