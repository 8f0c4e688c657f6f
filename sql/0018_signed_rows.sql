-- Each row carries the engine's signature over its leaf, and each open record one over what it says: the key is never in the
-- database, so whoever owns that can write rows, but none that is sealed. `writer` and `sequence` number the rows of a process,
-- and its heartbeats say which numbers must be there. Earlier rows have none of these, and stay as they are.
SET LOCAL ROLE affidavit_owner;

-- As in 0015: a detached month inherits no column, and an interrupted detach is finished first.
DO $$
DECLARE
    month record;
BEGIN
    FOR month IN
        SELECT m.relation, i.inhdetachpending AS is_pending
        FROM audit_months m JOIN pg_class c ON c.oid = m.relation
        LEFT JOIN pg_inherits i ON i.inhrelid = m.relation
        WHERE m.month IS NOT NULL AND i.inhdetachpending IS NOT FALSE
    LOOP
        IF month.is_pending THEN
            EXECUTE format('ALTER TABLE audit_logs DETACH PARTITION %s FINALIZE', month.relation);
        END IF;
        EXECUTE format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS writer uuid, ADD COLUMN IF NOT EXISTS sequence integer,
                        ADD COLUMN IF NOT EXISTS heartbeat jsonb, ADD COLUMN IF NOT EXISTS signature bytea', month.relation);
    END LOOP;
END
$$;

ALTER TABLE audit_logs
    ADD COLUMN writer    uuid,
    ADD COLUMN sequence  integer,
    ADD COLUMN heartbeat jsonb,
    ADD COLUMN signature bytea;
COMMENT ON COLUMN audit_logs.writer IS 'Process that wrote the record; it numbers its records in sequence.';
COMMENT ON COLUMN audit_logs.sequence IS 'Number of the record among those of its writer, from 1.';
COMMENT ON COLUMN audit_logs.heartbeat IS 'Of a heartbeat: up to which number the records of its writer must be there, and which could not be written.';
COMMENT ON COLUMN audit_logs.signature IS 'Signature of the engine over log_id and leaf_hash: see audit/__init__.py.';

ALTER TABLE audit_open ADD COLUMN signature bytea;

-- As in 0008, with the signatures of open records.
CREATE OR REPLACE FUNCTION audit_write(opened json, noted json, ended uuid[], closed json) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);  -- SET LOCAL: no role's own setting can weaken it
    IF opened IS NOT NULL THEN
        INSERT INTO audit_open (log_id, opened_at, owner, spool, trail, signature)
        SELECT log_id, opened_at, owner, spool, trail, signature FROM json_populate_recordset(NULL::audit_open, opened)
        ON CONFLICT DO NOTHING;
    END IF;
    IF noted IS NOT NULL THEN
        UPDATE audit_open SET trail = n.trail, signature = n.signature
        FROM json_to_recordset(noted) AS n(log_id uuid, trail jsonb, signature bytea) WHERE audit_open.log_id = n.log_id;
    END IF;
    IF closed IS NOT NULL THEN
        DELETE FROM audit_open WHERE log_id = ANY (ended);
        INSERT INTO audit_logs SELECT * FROM json_populate_recordset(NULL::audit_logs, closed)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality(ended) AND NOT audit_holds(closed) THEN
            RAISE EXCEPTION 'this request has another row already' USING ERRCODE = 'unique_violation';
        END IF;
    END IF;
END
$$;

-- An erasure empties open records too, and the eraser, who has the key, signs them anew.
DROP FUNCTION audit_forget_open(text[], uuid[]);
CREATE FUNCTION audit_open_to_empty(who text[], queries uuid[])
RETURNS TABLE (log_id uuid, trail jsonb, emptied jsonb, signature bytea)
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT o.log_id, o.trail, o.trail - audit_personal_columns() || '{"user_query_text": ""}', o.signature FROM audit_open o
    WHERE o.trail ->> 'end_user' = ANY (who) OR (o.trail ->> 'query_id')::uuid = ANY (queries)
    FOR UPDATE
$$;
CREATE FUNCTION audit_empty_open(emptied uuid, signed bytea) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    UPDATE audit_open SET trail = trail - audit_personal_columns() || '{"user_query_text": ""}', signature = signed
    WHERE log_id = emptied
$$;
REVOKE EXECUTE ON FUNCTION audit_open_to_empty, audit_empty_open FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_open_to_empty, audit_empty_open TO affidavit_archiver;

GRANT UPDATE (signature) ON audit_open TO affidavit_engine;
GRANT SELECT (schema_version, signature) ON audit_logs TO affidavit_sealer;
GRANT SELECT ON audit_open TO affidavit_auditor;  -- which numbers are in progress, and whether the engine signed them
