-- Who is signed in to the console: an API key with the scope audit, exchanged for a cookie of which only a digest is kept.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE console_sessions (
    digest       bytea PRIMARY KEY CHECK (length(digest) = 32),
    key_id       text NOT NULL REFERENCES api_keys ON DELETE CASCADE,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

GRANT SELECT, INSERT (digest, key_id), UPDATE (last_seen_at), DELETE ON console_sessions TO affidavit_engine;

-- Runs of `audit verify`: how far one is, and which record of the log has its verdict. It is no evidence; that record is.
CREATE TABLE verification_runs (
    run_id     uuid PRIMARY KEY,
    begun_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    asked_by   text,
    what       text,               -- is being counted
    done       bigint NOT NULL DEFAULT 0,
    total      bigint NOT NULL DEFAULT 0,
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when its process said so
    ended_at   timestamptz,
    log_id     uuid,
    logged_at  timestamptz         -- the record's timestamp, which finds its month
);

GRANT SELECT, INSERT, UPDATE ON verification_runs TO affidavit_engine;
GRANT SELECT ON verification_runs TO affidavit_auditor;
