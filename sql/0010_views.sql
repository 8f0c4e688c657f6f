-- What auditors ask most, under a name. A view shows nothing that its reader could not read without it, and days are UTC.
SET LOCAL ROLE affidavit_owner;

CREATE VIEW audit_requests_by_day WITH (security_invoker = true) AS
SELECT (timestamp AT TIME ZONE 'UTC')::date AS day,
       outcome,
       sum(repeat_count) AS requests,
       count(*) AS records,
       count(DISTINCT client_id) AS clients,
       count(*) FILTER (WHERE spooled) AS spooled,
       (percentile_disc(0.5) WITHIN GROUP (ORDER BY total_latency_ms)) AS median_ms,
       max(total_latency_ms) AS slowest_ms
FROM audit_logs GROUP BY day, outcome;

COMMENT ON VIEW audit_requests_by_day IS 'How many requests there were, by day and by how they ended.';
COMMENT ON COLUMN audit_requests_by_day.day IS 'Day of the requests, in UTC.';
COMMENT ON COLUMN audit_requests_by_day.outcome IS 'How they ended: answered, refused, served (a lookup), failed, client_gone, abandoned.';
COMMENT ON COLUMN audit_requests_by_day.requests IS 'How many requests ended so; a record of a flood counts for all it stands for.';
COMMENT ON COLUMN audit_requests_by_day.records IS 'How many records that are.';
COMMENT ON COLUMN audit_requests_by_day.clients IS 'How many different clients asked, those without a valid key left out.';
COMMENT ON COLUMN audit_requests_by_day.spooled IS 'How many records waited in a spool because the database was away.';
COMMENT ON COLUMN audit_requests_by_day.median_ms IS 'Half of them took at most so many milliseconds.';
COMMENT ON COLUMN audit_requests_by_day.slowest_ms IS 'The slowest took so many milliseconds.';

CREATE VIEW audit_refusals WITH (security_invoker = true) AS
SELECT (timestamp AT TIME ZONE 'UTC')::date AS day,
       book_id,
       reason,
       count(*) AS refusals,
       max(best_score) AS best_score_max,
       min(threshold) AS threshold_min
FROM audit_logs WHERE outcome = 'refused' GROUP BY day, book_id, reason;

COMMENT ON VIEW audit_refusals IS 'Why questions were refused, by day, book and reason.';
COMMENT ON COLUMN audit_refusals.day IS 'Day of the questions, in UTC.';
COMMENT ON COLUMN audit_refusals.book_id IS 'Book that was asked.';
COMMENT ON COLUMN audit_refusals.reason IS 'Why: not_covered, insufficient_evidence, citation_failed, model_refused, selection_not_in_book.';
COMMENT ON COLUMN audit_refusals.refusals IS 'How many questions were refused for it.';
COMMENT ON COLUMN audit_refusals.best_score_max IS 'Best score that a passage had for any of them.';
COMMENT ON COLUMN audit_refusals.threshold_min IS 'Lowest threshold that was in force.';

CREATE VIEW audit_low_confidence WITH (security_invoker = true) AS
SELECT timestamp, query_id, client_id, book_id, user_query_text, answer_text, confidence_score,
       retrieval_confidence, generation_confidence, jsonb_array_length(citations) AS citations
FROM audit_logs WHERE outcome = 'answered' AND confidence_level = 'low';

COMMENT ON VIEW audit_low_confidence IS 'Answers that were given, and marked as of low confidence.';
COMMENT ON COLUMN audit_low_confidence.timestamp IS 'When it was asked.';
COMMENT ON COLUMN audit_low_confidence.query_id IS 'Name of the request.';
COMMENT ON COLUMN audit_low_confidence.client_id IS 'Who asked.';
COMMENT ON COLUMN audit_low_confidence.book_id IS 'Book that was asked.';
COMMENT ON COLUMN audit_low_confidence.user_query_text IS 'Question, word for word.';
COMMENT ON COLUMN audit_low_confidence.answer_text IS 'Answer, as the reader saw it.';
COMMENT ON COLUMN audit_low_confidence.confidence_score IS 'Confidence from 0 to 1, made of the two that follow.';
COMMENT ON COLUMN audit_low_confidence.retrieval_confidence IS 'How well the passages fit the question.';
COMMENT ON COLUMN audit_low_confidence.generation_confidence IS 'How sure the generator was.';
COMMENT ON COLUMN audit_low_confidence.citations IS 'How many quotations stand in the answer.';

-- Half of the five seconds that a reader is promised.
CREATE VIEW audit_slow_requests WITH (security_invoker = true) AS
SELECT timestamp, query_id, client_id, book_id, endpoint, outcome, error_type, total_latency_ms,
       retrieval_latency_ms, generation_latency_ms,
       total_latency_ms - coalesce(retrieval_latency_ms, 0) - coalesce(generation_latency_ms, 0) AS other_ms
FROM audit_logs WHERE total_latency_ms >= 2500;

COMMENT ON VIEW audit_slow_requests IS 'Requests that took 2,500 milliseconds or more, half of what a reader is promised.';
COMMENT ON COLUMN audit_slow_requests.timestamp IS 'When it was asked.';
COMMENT ON COLUMN audit_slow_requests.query_id IS 'Name of the request.';
COMMENT ON COLUMN audit_slow_requests.client_id IS 'Who asked.';
COMMENT ON COLUMN audit_slow_requests.book_id IS 'Book that was asked.';
COMMENT ON COLUMN audit_slow_requests.endpoint IS 'Where it was asked.';
COMMENT ON COLUMN audit_slow_requests.outcome IS 'How it ended.';
COMMENT ON COLUMN audit_slow_requests.error_type IS 'What failed, if it failed.';
COMMENT ON COLUMN audit_slow_requests.total_latency_ms IS 'Milliseconds from the request to its end, without the writing of its record.';
COMMENT ON COLUMN audit_slow_requests.retrieval_latency_ms IS 'Milliseconds of these that the search took.';
COMMENT ON COLUMN audit_slow_requests.generation_latency_ms IS 'Milliseconds of these that the generator took.';
COMMENT ON COLUMN audit_slow_requests.other_ms IS 'Milliseconds that are left: key, limit, body, open record.';

CREATE VIEW audit_questions WITH (security_invoker = true) AS
SELECT timestamp, query_id, client_id, key_id, end_user, session_id, endpoint, book_id, source_mode,
       user_query_text, selected_text, filters, outcome, reason, answer_text, erased_at
FROM audit_logs WHERE source_mode IS NOT NULL;

COMMENT ON VIEW audit_questions IS 'What was asked and what was answered: each request whose question was read.';
COMMENT ON COLUMN audit_questions.timestamp IS 'When it was asked.';
COMMENT ON COLUMN audit_questions.query_id IS 'Name of the request.';
COMMENT ON COLUMN audit_questions.client_id IS 'Who asked: the client that the API key belongs to.';
COMMENT ON COLUMN audit_questions.key_id IS 'API key that was used.';
COMMENT ON COLUMN audit_questions.end_user IS 'Reader behind the client, as the client named them.';
COMMENT ON COLUMN audit_questions.session_id IS 'Conversation that it belongs to.';
COMMENT ON COLUMN audit_questions.endpoint IS 'Where it was asked.';
COMMENT ON COLUMN audit_questions.book_id IS 'Book that was asked.';
COMMENT ON COLUMN audit_questions.source_mode IS 'full-book, or context-restricted if text was selected.';
COMMENT ON COLUMN audit_questions.user_query_text IS 'Question, word for word.';
COMMENT ON COLUMN audit_questions.selected_text IS 'Text that the reader had selected.';
COMMENT ON COLUMN audit_questions.filters IS 'Part of the book that was to be searched.';
COMMENT ON COLUMN audit_questions.outcome IS 'How it ended.';
COMMENT ON COLUMN audit_questions.reason IS 'Why it was refused, if it was.';
COMMENT ON COLUMN audit_questions.answer_text IS 'Answer or refusal, as the reader saw it.';
COMMENT ON COLUMN audit_questions.erased_at IS 'When the personal columns were erased, if they were.';

CREATE VIEW audit_citations WITH (security_invoker = true) AS
SELECT c.chunk_id, l.timestamp, l.query_id, l.client_id, l.book_id, l.user_query_text, c.n, c.excerpt,
       c.start AS excerpt_start, c."end" AS excerpt_end, c.score, c.chapter, c.section, c.filename, c.page, c.url,
       l.index_generation
FROM audit_logs l
CROSS JOIN LATERAL jsonb_to_recordset(l.citations) AS c(
    n integer, chunk_id text, section text, chapter text, filename text, page text, url text, excerpt text,
    start integer, "end" integer, score double precision)
WHERE l.citations IS NOT NULL;

COMMENT ON VIEW audit_citations IS 'What a passage was cited for: one row for each quotation in an answer.';
COMMENT ON COLUMN audit_citations.chunk_id IS 'Passage that was quoted; chunks.chunk_id.';
COMMENT ON COLUMN audit_citations.timestamp IS 'When it was asked.';
COMMENT ON COLUMN audit_citations.query_id IS 'Name of the request.';
COMMENT ON COLUMN audit_citations.client_id IS 'Who asked.';
COMMENT ON COLUMN audit_citations.book_id IS 'Book that was asked.';
COMMENT ON COLUMN audit_citations.user_query_text IS 'Question, word for word.';
COMMENT ON COLUMN audit_citations.n IS 'Number of the quotation in its answer.';
COMMENT ON COLUMN audit_citations.excerpt IS 'Quotation, cut from the passage.';
COMMENT ON COLUMN audit_citations.excerpt_start IS 'Where it begins in the passage, in characters from 0.';
COMMENT ON COLUMN audit_citations.excerpt_end IS 'Where it ends in the passage, exclusive.';
COMMENT ON COLUMN audit_citations.score IS 'How well the passage fits the question.';
COMMENT ON COLUMN audit_citations.chapter IS 'Chapter of the quotation.';
COMMENT ON COLUMN audit_citations.section IS 'Section of the quotation.';
COMMENT ON COLUMN audit_citations.filename IS 'File of the book that it comes from.';
COMMENT ON COLUMN audit_citations.page IS 'Page of the quotation.';
COMMENT ON COLUMN audit_citations.url IS 'Address that readers were sent to.';
COMMENT ON COLUMN audit_citations.index_generation IS 'Generation of the index that found it.';

-- A span ends where the next record has another value. A record without one (no model was called) ends none.
CREATE VIEW audit_changes WITH (security_invoker = true) AS
WITH seen AS (
    SELECT v.what, v.book_id, v.value, l.timestamp, l.log_id
    FROM audit_logs l
    CROSS JOIN LATERAL (VALUES
        ('model_requested', NULL, l.model_requested),
        ('model_used', NULL, l.model_used),
        ('prompt', NULL, l.prompt_sha256),
        ('settings', NULL, l.settings_sha256),
        ('code', NULL, l.code_version),
        ('calibration', l.book_id, l.calibration_id),
        ('embedder', l.book_id, l.embedder),
        ('index_generation', l.book_id, l.index_generation::text)
    ) AS v(what, book_id, value)
    WHERE v.value IS NOT NULL
), begun AS (
    SELECT *, value IS DISTINCT FROM
        lag(value) OVER (PARTITION BY what, book_id ORDER BY timestamp, log_id) AS is_first
    FROM seen
), spans AS (
    SELECT *, count(*) FILTER (WHERE is_first)
        OVER (PARTITION BY what, book_id ORDER BY timestamp, log_id) AS span
    FROM begun
)
SELECT what, book_id, value, min(timestamp) AS first_seen, max(timestamp) AS last_seen, count(*) AS records
FROM spans GROUP BY what, book_id, span, value;

COMMENT ON VIEW audit_changes IS
    'What answers were made with over time: one row for each span in which a value stayed. Reads the whole log.';
COMMENT ON COLUMN audit_changes.what IS
    'model_requested, model_used, prompt, settings, code, and for each book calibration, embedder, index_generation.';
COMMENT ON COLUMN audit_changes.book_id IS 'Book that it belongs to; null for what is the same for all books.';
COMMENT ON COLUMN audit_changes.value IS 'Name, version or SHA-256 that was in force.';
COMMENT ON COLUMN audit_changes.first_seen IS 'When the first request of the span was made.';
COMMENT ON COLUMN audit_changes.last_seen IS 'When the last request of the span was made.';
COMMENT ON COLUMN audit_changes.records IS 'How many records of the span name the value.';

GRANT SELECT ON audit_requests_by_day, audit_refusals, audit_low_confidence, audit_slow_requests, audit_questions,
    audit_citations, audit_changes TO affidavit_auditor;
