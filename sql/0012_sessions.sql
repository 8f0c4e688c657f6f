-- Conversations, if they are switched on. Personal text, so it is here only as long as it is used: its owner may delete
-- it, and what nobody came back to is purged. The audit log keeps its own account of every question.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE chat_sessions (
    id               uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    client_id        text NOT NULL,                -- the site that it belongs to
    user_id          uuid,                         -- the site's reader; null: whoever has the token
    session_token    varchar(64) NOT NULL UNIQUE,  -- SHA-256 of the token, in hexadecimal digits
    created_at       timestamptz NOT NULL DEFAULT now(),
    last_activity_at timestamptz NOT NULL DEFAULT now(),
    metadata         jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX chat_sessions_user_id ON chat_sessions (user_id);
CREATE INDEX chat_sessions_last_activity_at ON chat_sessions (last_activity_at);

-- What was said is kept as it was said: an answer is never cut to a length here.
CREATE TABLE chat_messages (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    session_id  uuid NOT NULL REFERENCES chat_sessions ON DELETE CASCADE,
    number      bigint GENERATED ALWAYS AS IDENTITY,  -- the order: both messages of a turn have the same time
    query_id    uuid NOT NULL,                        -- the turn's record in audit_logs
    book_id     text NOT NULL,
    role        varchar(20) NOT NULL CHECK (role IN ('user', 'assistant')),
    content     text NOT NULL CHECK (content <> ''),
    tokens_used jsonb NOT NULL DEFAULT '{}',
    confidence  double precision CHECK (confidence BETWEEN 0 AND 1),
    created_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (query_id, role),
    CHECK (role <> 'user' OR confidence IS NULL)
);
CREATE INDEX chat_messages_session ON chat_messages (session_id, number);

CREATE TABLE source_citations (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    message_id      uuid NOT NULL REFERENCES chat_messages ON DELETE CASCADE,
    chapter_id      text NOT NULL,
    chapter_title   text NOT NULL,
    relevance_score double precision NOT NULL CHECK (relevance_score BETWEEN 0 AND 1),
    excerpt         text NOT NULL,
    position        integer NOT NULL CHECK (position > 0),
    UNIQUE (message_id, position)
);

-- Run daily: `affidavit sessions purge`, or pg_cron. Returns how many sessions were deleted.
CREATE FUNCTION purge_old_chat_sessions(days integer DEFAULT 30) RETURNS integer LANGUAGE sql AS $$
    WITH deleted AS (
        DELETE FROM chat_sessions WHERE last_activity_at < now() - make_interval(days => days) RETURNING id
    )
    SELECT count(*)::integer FROM deleted
$$;
REVOKE EXECUTE ON FUNCTION purge_old_chat_sessions FROM PUBLIC;
GRANT EXECUTE ON FUNCTION purge_old_chat_sessions TO affidavit_engine;

GRANT SELECT, INSERT, DELETE, UPDATE (last_activity_at) ON chat_sessions TO affidavit_engine;
GRANT SELECT, INSERT ON chat_messages, source_citations TO affidavit_engine;
