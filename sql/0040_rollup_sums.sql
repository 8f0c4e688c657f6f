-- Sums of the rollups' counts over all books and clients. Most charts have no filter: they read these, which are a tenth or less.
-- A sum is derived from the counts of its rollup, and `affidavit audit rollup --check` compares it with them.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE IF NOT EXISTS audit_rollup_sums (
    month      date NOT NULL,
    first_leaf bigint NOT NULL,
    day        date NOT NULL,
    measure    text NOT NULL,
    outcome    text,
    value      text,
    bucket     integer,
    count      bigint NOT NULL,
    total      bigint NOT NULL,
    first_at   timestamptz,
    last_at    timestamptz,
    FOREIGN KEY (month, first_leaf) REFERENCES audit_rollups ON DELETE CASCADE
);
DELETE FROM audit_rollup_sums;
INSERT INTO audit_rollup_sums
SELECT month, first_leaf, day, measure, outcome, value, bucket, sum(count), sum(total), min(first_at), max(last_at)
FROM audit_rollup_counts GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 4, 3;
CREATE INDEX IF NOT EXISTS audit_rollup_sums_measure ON audit_rollup_sums (measure, day);
CREATE INDEX IF NOT EXISTS audit_rollup_sums_rollup ON audit_rollup_sums (month, first_leaf);

COMMENT ON TABLE audit_rollup_sums IS 'Counts of sealed records by day, over all books and clients: sums of audit_rollup_counts.';
COMMENT ON COLUMN audit_rollup_sums.month IS 'Month of the rollup that it belongs to.';
COMMENT ON COLUMN audit_rollup_sums.first_leaf IS 'First leaf of the rollup that it belongs to.';
COMMENT ON COLUMN audit_rollup_sums.day IS 'Day of the records, in UTC.';
COMMENT ON COLUMN audit_rollup_sums.measure IS 'What is counted, as in audit_rollup_counts.';
COMMENT ON COLUMN audit_rollup_sums.outcome IS 'How the requests ended.';
COMMENT ON COLUMN audit_rollup_sums.value IS 'Reason of a refusal, stage of a latency, model, chapter, or the version that was in use.';
COMMENT ON COLUMN audit_rollup_sums.bucket IS 'Number of the bucket, in a histogram.';
COMMENT ON COLUMN audit_rollup_sums.count IS 'How many.';
COMMENT ON COLUMN audit_rollup_sums.total IS 'Sum of what was measured.';
COMMENT ON COLUMN audit_rollup_sums.first_at IS 'First record of the day with it, for what answers were made with.';
COMMENT ON COLUMN audit_rollup_sums.last_at IS 'Last record of the day with it.';

GRANT SELECT ON audit_rollup_sums TO affidavit_auditor;
GRANT SELECT, INSERT ON audit_rollup_sums TO affidavit_sealer;
