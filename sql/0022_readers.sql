-- Locks that no reader can take. An advisory lock is anybody's: an auditor who held one stopped the months, the seals and
-- the next start. These are rows of a table that no role may read or lock, reached through functions that no auditor may call.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE audit_locks (
    name text PRIMARY KEY
);
INSERT INTO audit_locks VALUES ('anchor'), ('claim'), ('erasure'), ('month'), ('seal');
CREATE TRIGGER audit_locks_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_locks
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_evidence_change();

-- Hold the lock until the transaction ends; false if it should not wait and somebody else holds it.
CREATE FUNCTION audit_lock(wanted text, waits boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF waits THEN
        PERFORM FROM audit_locks WHERE name = wanted FOR UPDATE;
    ELSE
        PERFORM FROM audit_locks WHERE name = wanted FOR UPDATE SKIP LOCKED;
    END IF;
    IF FOUND THEN
        RETURN true;
    END IF;
    IF NOT EXISTS (SELECT FROM audit_locks WHERE name = wanted) THEN
        RAISE EXCEPTION 'there is no lock %', wanted;
    END IF;
    RETURN false;
END
$$;

-- The names of the sessions that may write: a session lives as long as its connection, and everybody sees its name and its
-- login. Whoever logs in with the rights of an auditor alone is not among them, whatever name they take.
CREATE FUNCTION audit_sessions() RETURNS SETOF text LANGUAGE sql VOLATILE
SET search_path = public, pg_temp AS $$
    SELECT application_name FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND (
        pg_has_role(usesysid, 'affidavit_engine', 'MEMBER') OR pg_has_role(usesysid, 'affidavit_archiver', 'MEMBER'))
$$;

-- Take this name, unless a living session has it. It is given up with RESET application_name, or with the connection.
CREATE FUNCTION audit_claim(wanted text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM audit_lock('claim');
    PERFORM pg_stat_clear_snapshot();
    IF wanted IN (SELECT audit_sessions()) THEN
        RETURN false;
    END IF;
    PERFORM set_config('application_name', wanted, false);
    RETURN true;
END
$$;

REVOKE EXECUTE ON FUNCTION audit_lock, audit_sessions, audit_claim FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_lock TO affidavit_engine, affidavit_sealer, affidavit_archiver;
GRANT EXECUTE ON FUNCTION audit_sessions, audit_claim TO affidavit_engine, affidavit_archiver;

-- As in 0013 and 0014, with these locks.
CREATE OR REPLACE FUNCTION audit_make_month(month date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    first_day date := date_trunc('month', month)::date;
    partition text := 'audit_logs_' || to_char(first_day, 'YYYY_MM');
BEGIN
    PERFORM audit_lock('month');
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

CREATE OR REPLACE FUNCTION audit_erase(rows json) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    emptied text := (SELECT string_agg(format('%I = NULL', name), ', ') FROM unnest(audit_personal_columns() || ARRAY['salt']) AS name);
    source regclass;
    told bigint;
    changed bigint;
    erased bigint := 0;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM audit_lock('erasure');
    FOR source IN SELECT * FROM audit_tables() LOOP
        EXECUTE format(
            'INSERT INTO audit_erasures SELECT r.* FROM json_populate_recordset(NULL::audit_erasures, $1) r
             JOIN json_to_recordset($1) AS at(log_id uuid, timestamp timestamptz) USING (log_id)
             JOIN %s l ON l.log_id = r.log_id AND l.timestamp = at.timestamp
             WHERE r.commitments IS NOT NULL AND l.erased_at IS NULL', source) USING rows;
        GET DIAGNOSTICS told = ROW_COUNT;
        EXECUTE format(
            'UPDATE %s l SET %s, erased_at = e.erased_at
             FROM json_to_recordset($1) AS r(log_id uuid, erased_at timestamptz, timestamp timestamptz)
             JOIN audit_erasures e ON e.log_id = r.log_id AND e.erased_at = r.erased_at
             WHERE l.log_id = r.log_id AND l.timestamp = r.timestamp AND l.erased_at IS NULL', source, emptied) USING rows;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed <> told THEN
            RAISE EXCEPTION 'a month was moved meanwhile' USING ERRCODE = 'serialization_failure';
        END IF;
        erased := erased + changed;
    END LOOP;
    IF EXISTS (
        SELECT FROM json_populate_recordset(NULL::audit_erasures, rows) r
        WHERE r.commitments IS NOT NULL AND NOT EXISTS (SELECT FROM audit_erasures e WHERE e.log_id = r.log_id))
    THEN  -- it was in a table when it was looked for, and is in none now: its key would go without a line
        RAISE EXCEPTION 'a month was moved meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
    INSERT INTO audit_erasures SELECT r.* FROM json_populate_recordset(NULL::audit_erasures, rows) r
    WHERE r.commitments IS NULL AND EXISTS (SELECT FROM audit_row_keys k WHERE k.log_id = r.log_id);
    GET DIAGNOSTICS told = ROW_COUNT;
    DELETE FROM audit_row_keys k USING json_to_recordset(rows) AS r(log_id uuid) WHERE k.log_id = r.log_id;
    RETURN erased + told;
END
$$;

-- What a login as affidavit_auditor itself begins with. A session may change the first three for itself, so they are for
-- who leaves a psql open; `affidavit audit query` sets its own. The number of connections and, where a superuser migrates,
-- the room for temporary files hold. Other logins with this role begin with what their operator gives them.
RESET ROLE;
DO $$
DECLARE
    begins_with text;
BEGIN
    FOREACH begins_with IN ARRAY ARRAY[
        'statement_timeout = ''5min''', 'lock_timeout = ''10s''', 'idle_in_transaction_session_timeout = ''1min''',
        'temp_file_limit = ''4GB''']
    LOOP
        BEGIN
            EXECUTE format('ALTER ROLE affidavit_auditor IN DATABASE %I SET %s', current_database(), begins_with);
        EXCEPTION
            WHEN insufficient_privilege THEN
                RAISE WARNING 'Logins as affidavit_auditor do not begin with %: let a superuser set it with ALTER ROLE', begins_with;
        END;
    END LOOP;
END
$$;
DO $$
BEGIN
    IF (SELECT rolconnlimit FROM pg_roles WHERE rolname = 'affidavit_auditor') = -1 THEN
        ALTER ROLE affidavit_auditor CONNECTION LIMIT 20;
    END IF;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE WARNING 'Logins as affidavit_auditor may open any number of connections: let a superuser limit them with ALTER ROLE';
    WHEN internal_error THEN NULL;  -- another database of this server did it meanwhile
END
$$;
