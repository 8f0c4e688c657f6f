-- What readers thought of answers and refusals: `POST /v1/feedback` leaves it in the details of its own record.
SET LOCAL ROLE affidavit_owner;

CREATE VIEW audit_feedback WITH (security_invoker = true) AS
WITH given AS (
    SELECT timestamp AS given_at, log_id, (details ->> 'query_id')::uuid AS query_id,
           (details ->> 'helpful')::boolean AS helpful, details ->> 'reason' AS complaint
    FROM audit_logs
    WHERE endpoint = '/v1/feedback' AND outcome = 'served' AND details IS NOT NULL
), latest AS (
    SELECT DISTINCT ON (query_id) * FROM given ORDER BY query_id, given_at DESC, log_id DESC
)
SELECT f.given_at, f.query_id, f.helpful, f.complaint, q.timestamp AS asked_at, q.client_id, q.book_id,
       q.user_query_text, q.outcome, q.reason, q.confidence_level, q.confidence_score, q.answer_text
FROM latest f JOIN audit_logs q USING (query_id);

COMMENT ON VIEW audit_feedback IS 'What readers thought of an answer or a refusal: the last feedback on each question.';
COMMENT ON COLUMN audit_feedback.given_at IS 'When it was given.';
COMMENT ON COLUMN audit_feedback.query_id IS 'Name of the question that it is about.';
COMMENT ON COLUMN audit_feedback.helpful IS 'Whether the reader was helped.';
COMMENT ON COLUMN audit_feedback.complaint IS 'What was wrong, if the reader said so: wrong, beside_the_point, incomplete, outdated, other.';
COMMENT ON COLUMN audit_feedback.asked_at IS 'When it was asked.';
COMMENT ON COLUMN audit_feedback.client_id IS 'Who asked.';
COMMENT ON COLUMN audit_feedback.book_id IS 'Book that was asked.';
COMMENT ON COLUMN audit_feedback.user_query_text IS 'Question, word for word.';
COMMENT ON COLUMN audit_feedback.outcome IS 'How it ended: answered or refused.';
COMMENT ON COLUMN audit_feedback.reason IS 'Why it was refused, if it was.';
COMMENT ON COLUMN audit_feedback.confidence_level IS 'high, medium or low, of an answer.';
COMMENT ON COLUMN audit_feedback.confidence_score IS 'Confidence from 0 to 1, of an answer.';
COMMENT ON COLUMN audit_feedback.answer_text IS 'Answer or refusal, as the reader saw it.';

GRANT SELECT ON audit_feedback TO affidavit_auditor;
