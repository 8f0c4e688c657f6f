-- Forgetting a person: personal columns and the salt go, what stands for them in the hash stays, and so does every proof.
SET LOCAL ROLE affidavit_owner;

-- An erased record has no question any more. Every other one has: an empty text, if nothing was asked.
ALTER TABLE audit_logs ALTER COLUMN user_query_text DROP NOT NULL;

CREATE INDEX audit_logs_end_user ON audit_logs (end_user) WHERE end_user IS NOT NULL;

-- A line for each erased record, and no identity in it. Who only owns the database cannot make one: it is signed.
CREATE TABLE audit_erasures (
    erasure_id  uuid NOT NULL,
    log_id      uuid NOT NULL,
    query_id    uuid,                   -- null: not known, of a record that had left for the archive long before
    month       date NOT NULL,
    commitments jsonb,                  -- null: the record was in the archive alone, and so are they
    erased_at   timestamptz NOT NULL,   -- with the next but one: the record of this erasure in audit_logs
    basis       text NOT NULL,
    event       uuid NOT NULL,
    key_id      text NOT NULL,
    signature   text NOT NULL           -- see audit/__init__.py
);
CREATE INDEX audit_erasures_log_id ON audit_erasures (log_id);
CREATE INDEX audit_erasures_query_id ON audit_erasures (query_id);
CREATE INDEX audit_erasures_month ON audit_erasures (month, erased_at);
CREATE TRIGGER audit_erasures_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_erasures
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_evidence_change();
GRANT SELECT ON audit_erasures TO affidavit_auditor, affidavit_archiver;

-- As PERSONAL in audit/record.py.
CREATE FUNCTION audit_personal_columns() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY['answer_text', 'chunks_returned', 'citations', 'client_address', 'end_user', 'filter_message', 'filters',
        'llm_prompt', 'llm_response', 'released_text', 'retrieval_query', 'selected_text', 'user_query_text']
$$;

-- The tables that hold records: the log with its months, and months that were detached and still stand.
CREATE FUNCTION audit_tables() RETURNS SETOF regclass LANGUAGE sql STABLE AS $$
    SELECT 'public.audit_logs'::regclass
    UNION ALL
    SELECT relation FROM public.audit_months m
    WHERE month IS NOT NULL AND EXISTS (SELECT FROM pg_class WHERE oid = m.relation)
      AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = m.relation AND NOT inhdetachpending)
$$;

-- One way past it, and it ends in the same record without its personal columns: only as the owner, which nobody of the
-- house is outside of the function below, and only with the line that holds what stands for them.
CREATE OR REPLACE FUNCTION audit_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND TG_LEVEL = 'ROW' AND current_user = 'affidavit_owner' THEN
        IF audit_is_erased(to_jsonb(OLD), to_jsonb(NEW)) THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'audit_logs is insert-only: % is refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE FUNCTION audit_is_erased(before jsonb, after jsonb) RETURNS boolean
LANGUAGE sql STABLE SET search_path = public, pg_temp AS $$
    SELECT before ->> 'erased_at' IS NULL AND after ->> 'erased_at' IS NOT NULL
       AND after - 'erased_at' = before - 'erased_at'
           || (SELECT jsonb_object_agg(name, NULL) FROM unnest(audit_personal_columns() || ARRAY['salt']) AS name)
       AND EXISTS (
           SELECT FROM audit_erasures e
           WHERE e.log_id = (before ->> 'log_id')::uuid AND e.erased_at = (after ->> 'erased_at')::timestamptz
             AND (SELECT array_agg(name ORDER BY name) FROM jsonb_object_keys(e.commitments) AS name)
               = (SELECT array_agg(key ORDER BY key) FROM jsonb_each(before)
                  WHERE key = ANY (audit_personal_columns()) AND value <> 'null'))
$$;

-- The records that name one of these readers or answer one of these queries, or, if there are none, those from one moment
-- to before another; each with its leaf, and as JSON as it is hashed. Who is not sealed yet has no leaf.
CREATE FUNCTION audit_to_erase(
    who text[], queries uuid[], since timestamptz, until timestamptz, passed_over uuid[], most integer)
RETURNS TABLE (leaf_hash bytea, found json)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET timezone = 'UTC' SET bytea_output = 'hex' SET extra_float_digits = 1 AS $$
DECLARE
    listed text := (
        SELECT string_agg(CASE WHEN atttypid = 'timestamptz'::regtype
            THEN format('to_char(l.%1$I AT TIME ZONE ''UTC'', ''YYYY-MM-DD"T"HH24:MI:SS.US"Z"'') AS %1$I', attname)
            ELSE format('l.%I', attname) END, ', ' ORDER BY attnum)
        FROM pg_attribute WHERE attrelid = 'audit_logs'::regclass AND attnum > 0 AND NOT attisdropped);
    condition text := CASE WHEN since IS NULL THEN '(end_user = ANY ($1) OR query_id = ANY ($2))'
        ELSE 'timestamp >= $3 AND timestamp < $4 ORDER BY timestamp' END;
    source regclass;
BEGIN
    FOR source IN SELECT * FROM audit_tables() LOOP
        RETURN QUERY EXECUTE format(
            'SELECT (SELECT s.leaf_hash FROM audit_leaves s WHERE s.log_id = r.log_id), row_to_json(r) FROM (
                SELECT %s FROM %s l WHERE erased_at IS NULL AND log_id <> ALL ($5) AND %s LIMIT $6) r',
            listed, source, replace(condition, 'timestamp', 'l.timestamp'))
        USING who, queries, since, until, passed_over, most;
    END LOOP;
END
$$;

-- How many of them are older than this and not sealed yet.
CREATE FUNCTION audit_unsealed_of(who text[], queries uuid[], until timestamptz) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT count(*) FROM audit_logs l
    WHERE erased_at IS NULL AND timestamp < until AND (end_user = ANY (who) OR query_id = ANY (queries))
      AND NOT EXISTS (SELECT FROM audit_leaves s WHERE s.log_id = l.log_id)
$$;

-- The same of archived records: those whose key is still there.
CREATE FUNCTION audit_keys_to_destroy(who text[], queries uuid[], before date, most integer)
RETURNS TABLE (log_id uuid, query_id uuid, month date)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT k.log_id, k.query_id, k.month FROM audit_row_keys k
    WHERE k.subject = ANY (SELECT sha256(pepper || convert_to(name, 'UTF8')) FROM audit_pepper, unnest(who) AS name)
       OR k.query_id = ANY (queries) OR k.month < before
    LIMIT most
$$;

-- Erase these records in one transaction: their lines, their columns, their keys. Whoever was here before is not repeated;
-- how many are new. The lock keeps the archive from making a key of a record that is being erased. A month may be detached
-- between two statements: then nothing of this has happened.
CREATE FUNCTION audit_erase(rows json) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    emptied text := (SELECT string_agg(format('%I = NULL', name), ', ') FROM unnest(audit_personal_columns() || ARRAY['salt']) AS name);
    source regclass;
    told bigint;
    changed bigint;
    erased bigint := 0;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM pg_advisory_xact_lock(hashtext('audit_erasure'));
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

-- What stands for an archived record that was erased, when its month is restored: said by the evidence file.
CREATE FUNCTION audit_keep_commitments(erased uuid, stands_for jsonb) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    INSERT INTO audit_erasures
    SELECT e.erasure_id, e.log_id, e.query_id, e.month, stands_for, e.erased_at, e.basis, e.event, e.key_id, e.signature
    FROM audit_erasures e
    WHERE e.log_id = erased AND NOT EXISTS (
        SELECT FROM audit_erasures k WHERE k.log_id = erased AND k.commitments IS NOT DISTINCT FROM stands_for)
    LIMIT 1
$$;

-- The queries of the conversations that these readers are known to have had. A session was kept only for its owner, so
-- what a client merely claims to belong to one is not here.
CREATE FUNCTION audit_turns(who text[]) RETURNS SETOF uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT query_id FROM chat_messages WHERE session_id IN (
        SELECT id FROM chat_sessions WHERE 'user:' || user_id = ANY (who)
        UNION
        SELECT m.session_id FROM chat_messages m JOIN audit_logs l USING (query_id) WHERE l.end_user = ANY (who)
        UNION
        SELECT m.session_id FROM chat_messages m JOIN audit_row_keys k USING (query_id)
        WHERE k.subject = ANY (SELECT sha256(pepper || convert_to(name, 'UTF8')) FROM audit_pepper, unnest(who) AS name))
$$;

-- Conversations: whole ones of a reader, one turn of a query. How many.
CREATE FUNCTION audit_forget_sessions(who text[], turns uuid[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    WITH deleted AS (
        DELETE FROM chat_sessions WHERE 'user:' || user_id = ANY (who)
            OR id IN (SELECT session_id FROM chat_messages WHERE query_id = ANY (turns)) RETURNING id
    )
    SELECT count(*) FROM deleted
$$;
CREATE FUNCTION audit_forget_turn(query uuid) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    WITH deleted AS (DELETE FROM chat_messages WHERE query_id = query RETURNING id)
    SELECT count(*) FROM deleted
$$;

-- What is still open: how many; and emptied of what is personal, so that its end, if nobody else writes it, says nothing.
CREATE FUNCTION audit_open_of(who text[], queries uuid[], until timestamptz) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT count(*) FROM audit_open
    WHERE opened_at < until AND (trail ->> 'end_user' = ANY (who) OR (trail ->> 'query_id')::uuid = ANY (queries))
$$;
CREATE FUNCTION audit_forget_open(who text[], queries uuid[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    WITH emptied AS (
        UPDATE audit_open SET trail = trail - audit_personal_columns() || '{"user_query_text": ""}'
        WHERE trail ->> 'end_user' = ANY (who) OR (trail ->> 'query_id')::uuid = ANY (queries) RETURNING log_id
    )
    SELECT count(*) FROM emptied
$$;

DO $$
DECLARE
    known regprocedure;
BEGIN
    FOREACH known IN ARRAY ARRAY[
        'audit_to_erase(text[], uuid[], timestamptz, timestamptz, uuid[], integer)', 'audit_unsealed_of(text[], uuid[], timestamptz)',
        'audit_keys_to_destroy(text[], uuid[], date, integer)',
        'audit_erase(json)', 'audit_keep_commitments(uuid, jsonb)', 'audit_turns(text[])',
        'audit_forget_sessions(text[], uuid[])', 'audit_forget_turn(uuid)', 'audit_open_of(text[], uuid[], timestamptz)',
        'audit_forget_open(text[], uuid[])']::regprocedure[]
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', known);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO affidavit_archiver', known);
    END LOOP;
END
$$;
REVOKE EXECUTE ON FUNCTION audit_personal_columns, audit_tables, audit_is_erased FROM PUBLIC;
