-- Who is signed in to the console: an API key with the scope audit, exchanged for a cookie of which only a digest is kept.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE console_sessions (
    digest       bytea PRIMARY KEY CHECK (length(digest) = 32),
    key_id       text NOT NULL REFERENCES api_keys ON DELETE CASCADE,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

GRANT SELECT, INSERT (digest, key_id), UPDATE (last_seen_at), DELETE ON console_sessions TO affidavit_engine;
