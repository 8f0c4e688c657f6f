-- Rollups: counts by day, made from sealed rows only, so that a chart over years does not read years of rows. They are derived:
-- whoever doubts one makes it anew from the leaves that it names, with `affidavit audit rollup --check`.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE audit_rollups (
    month      date NOT NULL CHECK (extract(day FROM month) = 1),
    first_leaf bigint NOT NULL CHECK (first_leaf >= 0),
    tree_size  bigint NOT NULL CHECK (tree_size > first_leaf),
    root       bytea NOT NULL CHECK (octet_length(root) = 32),
    version    integer NOT NULL,
    erased     bigint NOT NULL CHECK (erased >= 0),
    digest     bytea NOT NULL CHECK (octet_length(digest) = 32),
    made_at    timestamptz NOT NULL,
    PRIMARY KEY (month, first_leaf)
);
CREATE TABLE audit_rollup_counts (
    month      date NOT NULL,
    first_leaf bigint NOT NULL,
    day        date NOT NULL,
    measure    text NOT NULL,
    book_id    text,
    client_id  text,
    outcome    text,
    value      text,
    bucket     integer,
    count      bigint NOT NULL,
    total      bigint NOT NULL,
    first_at   timestamptz,
    last_at    timestamptz,
    FOREIGN KEY (month, first_leaf) REFERENCES audit_rollups ON DELETE CASCADE
);
CREATE INDEX audit_rollup_counts_measure ON audit_rollup_counts (measure, day);
CREATE INDEX audit_rollup_counts_rollup ON audit_rollup_counts (month, first_leaf);

COMMENT ON TABLE audit_rollups IS 'Which sealed leaves have been counted, and under which signed head: one row for each counting.';
COMMENT ON COLUMN audit_rollups.month IS 'Month of the leaves.';
COMMENT ON COLUMN audit_rollups.first_leaf IS 'First leaf that was counted; it is where the one before ended.';
COMMENT ON COLUMN audit_rollups.tree_size IS 'Size of the anchored head; the leaf before it is the last that was counted.';
COMMENT ON COLUMN audit_rollups.root IS 'Root of that head.';
COMMENT ON COLUMN audit_rollups.version IS 'Version of the rules by which was counted.';
COMMENT ON COLUMN audit_rollups.erased IS 'How many of the records were erased before: the chapters that they cite are not counted.';
COMMENT ON COLUMN audit_rollups.digest IS 'SHA-256 over this row and its counts.';
COMMENT ON COLUMN audit_rollups.made_at IS 'When it was made.';
COMMENT ON TABLE audit_rollup_counts IS 'Counts of sealed records by day; no personal column is in it.';
COMMENT ON COLUMN audit_rollup_counts.month IS 'Month of the rollup that it belongs to.';
COMMENT ON COLUMN audit_rollup_counts.first_leaf IS 'First leaf of the rollup that it belongs to.';
COMMENT ON COLUMN audit_rollup_counts.day IS 'Day of the records, in UTC.';
COMMENT ON COLUMN audit_rollup_counts.measure IS 'What is counted: requests, questions, gate, chapters, latency, tokens_input, tokens_output, seal_lag, anchor_lag, or what answers were made with.';
COMMENT ON COLUMN audit_rollup_counts.book_id IS 'Book that was asked.';
COMMENT ON COLUMN audit_rollup_counts.client_id IS 'Who asked; null for chapters, so that a count of them names nobody.';
COMMENT ON COLUMN audit_rollup_counts.outcome IS 'How the requests ended.';
COMMENT ON COLUMN audit_rollup_counts.value IS 'Reason of a refusal, stage of a latency, model, chapter, or the version that was in use.';
COMMENT ON COLUMN audit_rollup_counts.bucket IS 'Number of the bucket, in a histogram.';
COMMENT ON COLUMN audit_rollup_counts.count IS 'How many.';
COMMENT ON COLUMN audit_rollup_counts.total IS 'Sum of what was measured: milliseconds or tokens; of requests, how many records they are.';
COMMENT ON COLUMN audit_rollup_counts.first_at IS 'First record of the day with it, for what answers were made with.';
COMMENT ON COLUMN audit_rollup_counts.last_at IS 'Last record of the day with it.';

GRANT SELECT ON audit_rollups, audit_rollup_counts TO affidavit_auditor;
GRANT SELECT, INSERT, DELETE ON audit_rollups TO affidavit_sealer;
GRANT SELECT, INSERT ON audit_rollup_counts TO affidavit_sealer;
GRANT SELECT (log_id, month) ON audit_erasures TO affidavit_sealer;

-- What is counted of the rows of these leaves: no personal column, and of the citations only the chapter of the best one. It has
-- its owner's rights, because a sealer reads no citation.
CREATE FUNCTION audit_rollup_rows(of_month date, first_leaf bigint, end_leaf bigint) RETURNS TABLE (
    leaf_index bigint, sealed_at timestamptz, log_id uuid, is_whole boolean, "timestamp" timestamptz, is_question boolean,
    book_id text, client_id text, outcome text, reason text, best_score double precision, threshold double precision,
    retrieval_latency_ms integer, generation_latency_ms integer, total_latency_ms integer, tokens_input integer,
    tokens_output integer, model_requested text, model_used text, prompt_sha256 text, settings_sha256 text, code_version text,
    calibration_id text, embedder text, index_generation text, repeat_count integer, chapter text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT s.leaf_index, s.sealed_at, s.log_id, l.leaf_hash IS NOT DISTINCT FROM s.leaf_hash, l.timestamp,
           l.source_mode IS NOT NULL, l.book_id, l.client_id, l.outcome, l.reason, l.best_score, l.threshold,
           l.retrieval_latency_ms, l.generation_latency_ms, l.total_latency_ms, l.tokens_input, l.tokens_output,
           l.model_requested, l.model_used, l.prompt_sha256, l.settings_sha256, l.code_version, l.calibration_id, l.embedder,
           l.index_generation::text, l.repeat_count,
           CASE WHEN jsonb_typeof(l.citations) = 'array' THEN (
               SELECT c ->> 'chapter' FROM jsonb_array_elements(l.citations) AS c
               ORDER BY c -> 'score' DESC NULLS LAST, c -> 'n' LIMIT 1) END
    FROM audit_leaves s LEFT JOIN audit_logs l ON l.log_id = s.log_id
        AND l.timestamp >= of_month::timestamp AT TIME ZONE 'UTC'
        AND l.timestamp < (of_month + interval '1 month') AT TIME ZONE 'UTC'
    WHERE s.month = of_month AND s.leaf_index >= $2 AND s.leaf_index < $3
    ORDER BY s.leaf_index
$$;
REVOKE EXECUTE ON FUNCTION audit_rollup_rows FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_rollup_rows TO affidavit_sealer, affidavit_auditor;
