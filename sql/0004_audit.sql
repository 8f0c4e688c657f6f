-- One row per request, for ever. Monthly partitions in UTC and no default partition: a default would hold rows hostage
-- when their month is made, and forbids detaching a month without a lock.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE audit_open (
    log_id    uuid PRIMARY KEY,
    opened_at timestamptz NOT NULL,
    owner     bigint NOT NULL,      -- the advisory lock that the writing process holds while it lives
    trail     jsonb NOT NULL        -- what is known so far, to close it if the process dies
);

CREATE TABLE audit_logs (
    log_id                 uuid NOT NULL,
    query_id               uuid NOT NULL,
    answer_id              uuid,
    user_query_text        text NOT NULL,
    source_mode            varchar(20),
    retrieval_query        text,
    chunks_retrieved_count integer,
    chunks_returned        jsonb,
    retrieval_latency_ms   integer,
    llm_prompt             text,
    llm_response           text,
    answer_text            text,
    confidence_score       double precision,
    citations              jsonb,
    success                boolean,
    error_message          text,
    timestamp              timestamptz NOT NULL,
    request_id             text,
    client_id              text,
    key_id                 text,
    end_user               text,
    client_address         text,
    session_id             uuid,
    book_id                text,
    endpoint               text NOT NULL,
    http_status            integer,
    outcome                text NOT NULL,
    reason                 text,
    error_type             text,
    selected_text          text,
    filters                jsonb,
    top_k                  integer,
    confidence_level       text,
    retrieval_confidence   double precision,
    generation_confidence  double precision,
    index_generation       uuid,
    embedder               text,
    calibration_id         text,
    threshold              double precision,
    model_requested        text,
    model_used             text,
    provider_request_id    text,
    stop_reason            text,
    tokens_input           integer,
    tokens_output          integer,
    generation_latency_ms  integer,
    total_latency_ms       integer,
    limit_decision         text,
    repeat_count           integer NOT NULL DEFAULT 1,
    prompt_sha256          text,
    settings_sha256        text,
    code_version           text,
    spooled                boolean NOT NULL DEFAULT false,
    schema_version         integer NOT NULL,
    salt                   bytea,
    leaf_hash              bytea NOT NULL,
    erased_at              timestamptz,
    PRIMARY KEY (log_id, timestamp)
) PARTITION BY RANGE (timestamp);

CREATE INDEX audit_logs_query_id ON audit_logs (query_id);
CREATE INDEX audit_logs_answer_id ON audit_logs (answer_id);
CREATE INDEX audit_logs_timestamp ON audit_logs (timestamp);

CREATE FUNCTION audit_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit_logs is insert-only: % is refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE TRIGGER audit_logs_keep BEFORE UPDATE OR DELETE ON audit_logs
    FOR EACH ROW EXECUTE FUNCTION audit_refuse_change();
CREATE TRIGGER audit_logs_keep_all BEFORE TRUNCATE ON audit_logs
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_change();

-- Make the partition of one month and say whether it was missing. Made beside the table and attached, so that a reader
-- of the log does not wait; TRUNCATE triggers are not inherited, so each month gets its own.
CREATE FUNCTION audit_make_month(month date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    first_day date := date_trunc('month', month)::date;
    partition text := 'audit_logs_' || to_char(first_day, 'YYYY_MM');
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('audit_make_month'));
    IF to_regclass(partition) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE audit_logs INCLUDING ALL)', partition);
    EXECUTE format('CREATE TRIGGER audit_logs_keep_all BEFORE TRUNCATE ON %I
                    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_change()', partition);
    EXECUTE format('ALTER TABLE audit_logs ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', partition,
                   to_char(first_day, 'YYYY-MM-DD') || ' 00:00:00+00',
                   to_char(first_day + interval '1 month', 'YYYY-MM-DD') || ' 00:00:00+00');
    EXECUTE format('GRANT SELECT ON %I TO affidavit_auditor', partition);
    RETURN true;
END
$$;
REVOKE EXECUTE ON FUNCTION audit_make_month FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_make_month TO affidavit_engine;

GRANT INSERT ON audit_logs TO affidavit_engine;
GRANT SELECT, INSERT, DELETE ON audit_open TO affidavit_engine;
GRANT SELECT ON audit_logs TO affidavit_auditor;
