-- The writer's one statement, and what keeps others from closing a request whose end may still lie in a spool.
SET LOCAL ROLE affidavit_owner;

ALTER TABLE audit_open ADD COLUMN spool uuid;  -- where the end of this request may be waiting; null: nowhere

-- Whether the log holds these very rows. The writer cannot read the log, and learns no more than yes or no.
CREATE FUNCTION audit_holds(rows json) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
BEGIN ATOMIC
    SELECT coalesce(bool_and(EXISTS (
        SELECT FROM audit_logs l
        WHERE l.log_id = r.log_id AND l.timestamp = r.timestamp AND l.leaf_hash = r.leaf_hash)), true)
    FROM json_to_recordset(rows) AS r(log_id uuid, timestamp timestamptz, leaf_hash bytea);
END;
REVOKE EXECUTE ON FUNCTION audit_holds FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_holds TO affidavit_engine;

-- A batch of the group commit: one statement is one transaction, one way to the server and one flush to disk. It may be
-- repeated: what is there already is left as it is. It runs with the rights of whoever calls it.
CREATE FUNCTION audit_write(opened json, noted json, ended uuid[], closed json) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);  -- SET LOCAL: no role's own setting can weaken it
    IF opened IS NOT NULL THEN
        INSERT INTO audit_open (log_id, opened_at, owner, spool, trail)
        SELECT log_id, opened_at, owner, spool, trail FROM json_populate_recordset(NULL::audit_open, opened)
        ON CONFLICT DO NOTHING;
    END IF;
    IF noted IS NOT NULL THEN
        UPDATE audit_open SET trail = n.trail
        FROM json_to_recordset(noted) AS n(log_id uuid, trail jsonb) WHERE audit_open.log_id = n.log_id;
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
REVOKE EXECUTE ON FUNCTION audit_write FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_write TO affidavit_engine;
