-- People who sign in to the console at an identity provider (OpenID Connect). Records name a person by `person_id`, which is random, and
-- by the personal column `end_user`. Only this table joins the two: an erasure deletes the row, and the id says nothing any more.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE IF NOT EXISTS console_people (
    person_id    text PRIMARY KEY CHECK (person_id ~ '^oidc:[0-9a-f]{16}$'),
    issuer       text NOT NULL,
    subject      text NOT NULL,
    last_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when a session of theirs began
    UNIQUE (issuer, subject)
);

-- Sign-ins that have become a session, by the digest of the secret that the browser had: each counts once.
CREATE TABLE IF NOT EXISTS console_sign_ins (
    digest   bytea PRIMARY KEY CHECK (length(digest) = 32),
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- `granted`: those of the person's groups that gave a role, to be judged again by the settings at each request.
ALTER TABLE console_sessions
    ALTER COLUMN key_id DROP NOT NULL,
    ADD COLUMN IF NOT EXISTS person_id text REFERENCES console_people ON DELETE CASCADE,
    ADD COLUMN IF NOT EXISTS granted text[],
    DROP CONSTRAINT IF EXISTS console_sessions_of_one,
    ADD CONSTRAINT console_sessions_of_one CHECK (num_nonnulls(key_id, person_id) = 1);
CREATE INDEX IF NOT EXISTS console_sessions_person ON console_sessions (person_id);

GRANT SELECT, INSERT (person_id, issuer, subject), UPDATE (last_seen_at), DELETE ON console_people TO affidavit_engine;
GRANT SELECT, INSERT (digest), DELETE ON console_sign_ins TO affidavit_engine;
GRANT INSERT (person_id, granted) ON console_sessions TO affidavit_engine;

-- As in 0014, with what is known of a person who signed in.
CREATE OR REPLACE FUNCTION audit_forget_sessions(who text[], turns uuid[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    WITH people AS (
        DELETE FROM console_people WHERE 'oidc:' || issuer || ' ' || subject = ANY (who) RETURNING person_id
    ), deleted AS (
        DELETE FROM chat_sessions WHERE 'user:' || user_id = ANY (who)
            OR id IN (SELECT session_id FROM chat_messages WHERE query_id = ANY (turns)) RETURNING id
    )
    SELECT (SELECT count(*) FROM deleted) + (SELECT count(*) FROM people)
$$;

COMMENT ON COLUMN audit_logs.client_id IS 'Client that the API key belongs to; in the console also the random name of a person.';
COMMENT ON COLUMN audit_logs.end_user IS 'Reader behind the client, as the client named them; in the console the person who signed in. Personal.';
COMMENT ON COLUMN audit_access.who IS 'Who read: the client of the API key, the random name of a person in the console, or the login of the database.';
