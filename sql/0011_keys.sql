-- What keys may be bound to, when they end, and on which days they were used.
SET LOCAL ROLE affidavit_owner;

ALTER TABLE api_keys ADD COLUMN books text[] CHECK (cardinality(books) > 0);  -- null: every book
COMMENT ON COLUMN api_keys.revoked_at IS 'From then on the key is refused. In the future: it was rotated, and overlaps.';

-- A rate that nobody can read would be a fault at every request. Keys made before are left as they are.
ALTER TABLE api_keys ADD CONSTRAINT api_keys_rate_limit_is_a_rate
    CHECK (rate_limit ~ '^[1-9][0-9]{0,8}/(second|minute|hour|day)$') NOT VALID;

COMMENT ON COLUMN audit_requests_by_day.outcome IS
    'How they ended: answered, refused, served (a lookup), recorded (a change of a key), failed, client_gone, abandoned.';

-- A row for each day on which a key was good for something. No reference to api_keys: a use is written long after the
-- request, and must not be lost because its key is gone.
CREATE TABLE api_key_uses (
    key_id text NOT NULL,
    day    date NOT NULL,               -- in UTC
    PRIMARY KEY (key_id, day)
);
GRANT INSERT ON api_key_uses TO affidavit_engine;
