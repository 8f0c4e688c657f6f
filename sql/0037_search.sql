-- Search over questions and answers, every id that can be pasted, and what auditors keep of their searches.
SET LOCAL ROLE affidavit_owner;

-- What the search index of a month holds of a record: its words, and the ids for which no other index is. There is no such index
-- on the month that is being written, because it would slow every insert; `affidavit audit partitions` builds it once a month is over.
-- `simple`, because the language of a question is not recorded. Chinese and Japanese have no spaces, so each of their characters
-- is a word, and a search for several is one for a phrase. The words of an erased record are those of an empty text.
CREATE FUNCTION audit_search_words(question text, answer text, citations jsonb, provider_request_id text, writer uuid)
RETURNS tsvector LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN to_tsvector('pg_catalog.simple'::regconfig, regexp_replace(
               coalesce(left(question, 20000), '') || ' ' || coalesce(left(answer, 40000), ''),
               '([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])', ' \1 ', 'g'))
        || array_to_tsvector(array_remove(
               ARRAY['provider_request_id:' || left(provider_request_id, 200), 'writer:' || writer] || CASE jsonb_typeof(citations)
                   WHEN 'array' THEN ARRAY(SELECT 'chunk_id:' || left(c ->> 'chunk_id', 200) FROM jsonb_array_elements(citations) c) END,
               NULL));
END
$$;
-- A late row is entered into the index by whoever writes it.
REVOKE EXECUTE ON FUNCTION audit_search_words FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_search_words TO affidavit_auditor, affidavit_engine, affidavit_archiver;

-- The turns of a conversation, the request that a reader names, what was thought of an answer, the record of a receipt's hash.
CREATE INDEX audit_logs_session_id ON audit_logs (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX audit_logs_request_id ON audit_logs (request_id) WHERE request_id IS NOT NULL;
CREATE INDEX audit_logs_feedback ON audit_logs ((details ->> 'query_id')) WHERE endpoint = '/v1/feedback';
CREATE INDEX audit_leaves_leaf_hash ON audit_leaves USING hash (leaf_hash);

-- Searches that auditors keep. Only the console reads this table, which shows each to its owner and, if it is shared, to all.
-- A frozen one has the heads at which it was taken, and the leaves that it found below them.
CREATE TABLE audit_saved_views (
    view_id   uuid PRIMARY KEY,
    owner     text NOT NULL,
    name      text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    filter    text NOT NULL CHECK (length(filter) <= 4000),
    is_shared boolean NOT NULL DEFAULT false,
    made_at   timestamptz NOT NULL,
    heads     jsonb,
    leaves    jsonb,
    CHECK ((heads IS NULL) = (leaves IS NULL))
);
CREATE INDEX audit_saved_views_owner ON audit_saved_views (owner);
COMMENT ON TABLE audit_saved_views IS 'Searches that auditors keep, each with its owner.';
COMMENT ON COLUMN audit_saved_views.view_id IS 'Name of the view in its address.';
COMMENT ON COLUMN audit_saved_views.owner IS 'Client of the key that saved it. Nobody else changes it.';
COMMENT ON COLUMN audit_saved_views.name IS 'What its owner called it.';
COMMENT ON COLUMN audit_saved_views.filter IS 'Filter, as in the address of the search page.';
COMMENT ON COLUMN audit_saved_views.is_shared IS 'Whether all auditors see it. A lead may share.';
COMMENT ON COLUMN audit_saved_views.made_at IS 'When it was saved.';
COMMENT ON COLUMN audit_saved_views.heads IS 'Of a frozen result: size and root of each month''s tree at which it was taken.';
COMMENT ON COLUMN audit_saved_views.leaves IS 'Of a frozen result: the leaves that it found, by month.';
ALTER TABLE audit_saved_views ALTER name SET STATISTICS 0, ALTER filter SET STATISTICS 0;

GRANT SELECT, INSERT, DELETE ON audit_saved_views TO affidavit_engine;

-- Whether a hold covers a record: an auditor who reads it sees that, and may read the holds themselves.
GRANT EXECUTE ON FUNCTION audit_is_held TO affidavit_auditor;
