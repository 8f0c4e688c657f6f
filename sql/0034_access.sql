-- Who read what: each read of personal columns is a record of the log, whose `details` say so under `access`.
SET LOCAL ROLE affidavit_owner;

CREATE VIEW audit_access WITH (security_invoker = true) AS
SELECT coalesce((details ->> 'read_at')::timestamptz, timestamp) AS read_at,
       timestamp AS recorded_at,
       query_id,
       details -> 'access' ->> 'who' AS who,
       details -> 'access' ->> 'role' AS role,
       key_id,
       endpoint AS through,
       client_address,
       details -> 'access' ->> 'filter' AS asked_for,
       details -> 'access' ->> 'columns' AS personal_columns,
       (details -> 'access' ->> 'records')::bigint AS records,
       details -> 'access' ->> 'basis' AS basis,
       details -> 'access' ->> 'second' AS second_person,
       outcome
FROM audit_logs WHERE details ->> 'access' IS NOT NULL;

COMMENT ON VIEW audit_access IS 'Who read what: one row for each read of personal columns through a command, the console or the interface.';
COMMENT ON COLUMN audit_access.read_at IS 'When it was asked for; the record of it is written before the first read.';
COMMENT ON COLUMN audit_access.recorded_at IS 'When the record of it was made: soon after, for an auditor''s login. A condition on it is quick.';
COMMENT ON COLUMN audit_access.query_id IS 'Name of the read, as of a request.';
COMMENT ON COLUMN audit_access.who IS 'Who read: the client of the API key, or the login of the database.';
COMMENT ON COLUMN audit_access.role IS 'auditor, reviewer, lead or operator.';
COMMENT ON COLUMN audit_access.key_id IS 'API key that was used; null for a command.';
COMMENT ON COLUMN audit_access.through IS 'Command, or address of the page or the interface.';
COMMENT ON COLUMN audit_access.client_address IS 'Address of the reader; null for a command.';
COMMENT ON COLUMN audit_access.asked_for IS 'SQL statement, filter or record that was asked for.';
COMMENT ON COLUMN audit_access.personal_columns IS 'Personal columns that were read, as a JSON list.';
COMMENT ON COLUMN audit_access.records IS 'How many rows were shown; null if nobody knows, or if the read did not end well.';
COMMENT ON COLUMN audit_access.basis IS 'Reason that was given.';
COMMENT ON COLUMN audit_access.second_person IS 'Who approved it, if a second person had to.';
COMMENT ON COLUMN audit_access.outcome IS 'recorded or served: it was shown; failed: it was not; abandoned: nobody knows.';

GRANT SELECT ON audit_access TO affidavit_auditor;

-- A login with an auditor's rights alone can neither insert nor sign a record. It leaves its reads here, under the login that
-- the server knows, and a running engine writes them into the log. Nobody but these functions may touch the table.
CREATE TABLE audit_reads_waiting (
    read_id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    read_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    login    text NOT NULL,
    command  text NOT NULL CHECK (command ~ '^(audit (query|search|prove|package|export|report|pii|hold list|access ask)|console)$'),  -- and no other record
    details  jsonb NOT NULL CHECK (octet_length(details::text) <= 32000),  -- ours have at most 20,000 for what was asked for
    records  bigint,
    has_ended boolean NOT NULL DEFAULT false
);
ALTER TABLE audit_reads_waiting ALTER COLUMN details SET STATISTICS 0, ALTER COLUMN command SET STATISTICS 0;
GRANT SELECT (read_id, read_at, login) ON audit_reads_waiting TO affidavit_auditor;  -- how many wait, and since when

-- A row for each login that ever reported, to be locked: an advisory lock could be taken by another reader, who stays.
CREATE TABLE audit_reporters (login text PRIMARY KEY);

-- Before the read. The limit keeps one login from filling the disk; whoever meets it does not read. The lock makes it hold for
-- reports at once too.
CREATE FUNCTION audit_report_read(command text, details jsonb) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    reported uuid;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    INSERT INTO audit_reporters VALUES (session_user) ON CONFLICT DO NOTHING;
    PERFORM FROM audit_reporters WHERE login = session_user FOR UPDATE;
    IF (SELECT count(*) FROM audit_reads_waiting w WHERE w.login = session_user) >= 1000 THEN
        RAISE EXCEPTION '1,000 reads of % wait for an engine that records them', session_user
            USING ERRCODE = 'configuration_limit_exceeded';
    END IF;
    INSERT INTO audit_reads_waiting (login, command, details)
    VALUES (session_user, audit_report_read.command, audit_report_read.details) RETURNING read_id INTO reported;
    RETURN reported;
END
$$;

-- After the read: how many rows it showed, and what else is known only then; once, only of one's own, and nothing is replaced.
CREATE FUNCTION audit_end_read(reported uuid, shown bigint, more jsonb DEFAULT '{}') RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    UPDATE audit_reads_waiting SET records = shown, details = more || details, has_ended = true
    WHERE read_id = reported AND login = session_user AND NOT has_ended
$$;

-- For the engine, which writes their records in the same transaction: those that have ended, or that will not end any more. Of
-- each login at most 20 at a time, so that none fills the log, which nobody can shorten, or keeps the others waiting.
CREATE FUNCTION audit_take_reads(patience interval, most integer) RETURNS SETOF audit_reads_waiting
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    WITH numbered AS (
        SELECT read_id, row_number() OVER (PARTITION BY login ORDER BY read_at) AS number FROM audit_reads_waiting
        WHERE has_ended OR read_at < clock_timestamp() - patience
    )
    DELETE FROM audit_reads_waiting WHERE read_id IN (
        SELECT w.read_id FROM audit_reads_waiting w JOIN numbered n USING (read_id) WHERE n.number <= 20
        ORDER BY w.read_at LIMIT most FOR UPDATE OF w SKIP LOCKED)
    RETURNING *
$$;

REVOKE EXECUTE ON FUNCTION audit_report_read, audit_end_read, audit_take_reads FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_report_read, audit_end_read TO affidavit_auditor;
GRANT EXECUTE ON FUNCTION audit_take_reads TO affidavit_engine;

-- An auditor lists the holds: how many records each covers, and which ones an erasure waits for. Neither names anybody.
CREATE FUNCTION audit_holds_delaying(request uuid) RETURNS SETOF uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT h.hold_id
    FROM audit_erasure_requests r LEFT JOIN audit_hold_subjects s ON s.id = r.request_id
    CROSS JOIN LATERAL audit_holds_against(
        coalesce(s.names, '{}'), array_remove(ARRAY[r.query_id], NULL) || ARRAY(SELECT audit_turns(s.names))) h
    WHERE r.request_id = request AND r.change = 'asked'
$$;
REVOKE EXECUTE ON FUNCTION audit_holds_delaying FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_holds_delaying TO affidavit_auditor, affidavit_archiver;
GRANT EXECUTE ON FUNCTION audit_count_held TO affidavit_auditor;
