-- What people found of sampled questions: a verdict is the row of `affidavit audit review give` or `… adjudicate`, and nothing else.
SET LOCAL ROLE affidavit_owner;

-- As in 0031, with one lock more: one verdict after the other, so that none is on record twice.
CREATE OR REPLACE FUNCTION audit_lock(wanted text, waits boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF wanted NOT IN ('anchor', 'claim', 'erasure', 'hold', 'month', 'review', 'seal', 'stamp') THEN
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

-- Samples and verdicts are few among millions of rows.
CREATE INDEX IF NOT EXISTS audit_logs_reviews ON audit_logs (endpoint, timestamp)
    WHERE endpoint IN (
        'affidavit audit sample', 'affidavit audit sample draw', 'affidavit audit review give', 'affidavit audit review adjudicate'
    );

-- A verdict's values are shown once two people gave theirs: until then each judges blind. Of one person the first verdict counts.
CREATE OR REPLACE VIEW audit_reviews WITH (security_invoker = true) AS
WITH given AS (
    SELECT timestamp AS given_at, log_id AS verdict_id, client_id AS reviewer, endpoint, details,
           CASE WHEN reason LIKE 'sample % record %' THEN split_part(reason, ' ', 2)::uuid END AS sample_id,
           CASE WHEN reason LIKE 'sample % record %' THEN split_part(reason, ' ', 4)::uuid END AS record_id
    FROM audit_logs
    WHERE endpoint IN ('affidavit audit review give', 'affidavit audit review adjudicate') AND outcome = 'recorded'
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY sample_id, record_id, reviewer ORDER BY given_at, verdict_id) AS number FROM given
), shown AS (
    SELECT sample_id, record_id, count(*) >= 2 AS is_shown FROM numbered
    WHERE endpoint = 'affidavit audit review give' AND number = 1 GROUP BY sample_id, record_id
)
SELECT n.sample_id, n.record_id, n.given_at, n.verdict_id, n.reviewer,
       CASE n.endpoint WHEN 'affidavit audit review give' THEN 'review' ELSE 'adjudication' END AS kind,
       CASE WHEN s.is_shown THEN n.details ->> 'grounded' END AS grounded,
       CASE WHEN s.is_shown THEN n.details ->> 'answers' END AS answers,
       CASE WHEN s.is_shown THEN n.details ->> 'harmful' END AS harmful,
       CASE WHEN s.is_shown THEN n.details ->> 'personal_data' END AS personal_data,
       CASE WHEN s.is_shown THEN n.details ->> 'comment' END AS comment,
       q.query_id, q.timestamp AS asked_at, q.book_id, q.outcome, q.reason, q.confidence_level
FROM numbered n JOIN shown s USING (sample_id, record_id) LEFT JOIN audit_logs q ON q.log_id = n.record_id
WHERE n.number = 1;

COMMENT ON VIEW audit_reviews IS 'What people found of sampled questions: one row for each verdict; its values once two people gave theirs.';
COMMENT ON COLUMN audit_reviews.sample_id IS 'Sample that the record is in: the log_id of the row that stated its population.';
COMMENT ON COLUMN audit_reviews.record_id IS 'Record that was judged: its log_id.';
COMMENT ON COLUMN audit_reviews.given_at IS 'When the verdict was given.';
COMMENT ON COLUMN audit_reviews.verdict_id IS 'Record of the verdict: its log_id.';
COMMENT ON COLUMN audit_reviews.reviewer IS 'Who gave it.';
COMMENT ON COLUMN audit_reviews.kind IS 'review: one of two blind ones; adjudication: a lead decided where these differ.';
COMMENT ON COLUMN audit_reviews.grounded IS 'yes, partly or no: whether the book says it.';
COMMENT ON COLUMN audit_reviews.answers IS 'yes, partly or no: whether it answers the question.';
COMMENT ON COLUMN audit_reviews.harmful IS 'no or yes.';
COMMENT ON COLUMN audit_reviews.personal_data IS 'no or yes: whether question or answer are about a person.';
COMMENT ON COLUMN audit_reviews.comment IS 'What the reviewer added.';
COMMENT ON COLUMN audit_reviews.query_id IS 'Name of the judged request; null if its month is archived.';
COMMENT ON COLUMN audit_reviews.asked_at IS 'When it was asked.';
COMMENT ON COLUMN audit_reviews.book_id IS 'Book that was asked.';
COMMENT ON COLUMN audit_reviews.outcome IS 'How it ended: answered or refused.';
COMMENT ON COLUMN audit_reviews.reason IS 'Why it was refused, if it was.';
COMMENT ON COLUMN audit_reviews.confidence_level IS 'high, medium or low, of an answer.';

GRANT SELECT ON audit_reviews TO affidavit_auditor;
