-- Bearer keys of the sites that ask. Only a digest is kept: a key cannot be read back.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE api_keys (
    key_id     text PRIMARY KEY,
    client_id  text NOT NULL,
    digest     bytea NOT NULL CHECK (length(digest) = 32),
    scopes     text[] NOT NULL,
    rate_limit text,                -- such as '100/minute'; null means the one in the settings
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz
);

GRANT SELECT ON api_keys TO affidavit_engine;
