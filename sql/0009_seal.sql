-- The evidence: one Merkle tree for each month (UTC), its signed heads, and where those were anchored. Insert-only for
-- everybody. Who writes rows cannot write evidence, and who writes evidence cannot write rows.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE audit_leaves (
    month      date NOT NULL CHECK (extract(day FROM month) = 1),
    leaf_index bigint NOT NULL CHECK (leaf_index >= 0),
    log_id     uuid NOT NULL UNIQUE,
    leaf_hash  bytea NOT NULL CHECK (octet_length(leaf_hash) = 32),
    sealed_at  timestamptz NOT NULL,
    PRIMARY KEY (month, leaf_index)    -- with the uniqueness of log_id all that keeps several sealers apart
);

CREATE TABLE audit_checkpoints (
    month      date NOT NULL CHECK (extract(day FROM month) = 1),
    tree_size  bigint NOT NULL CHECK (tree_size > 0),
    note       text NOT NULL,          -- a signed note: see audit/checkpoint.py
    created_at timestamptz NOT NULL,
    PRIMARY KEY (month, tree_size)
);

CREATE TABLE audit_anchors (
    month         date NOT NULL,
    tree_size     bigint NOT NULL,
    vault_key     text NOT NULL,
    vault_version text NOT NULL,
    anchored_at   timestamptz NOT NULL,
    PRIMARY KEY (month, tree_size)
);

-- For whoever wants to know which keys signed. A verifier trusts only the public file beside the private key.
CREATE TABLE audit_keys (
    key_id     text PRIMARY KEY,
    public_key text NOT NULL,
    created_at timestamptz NOT NULL
);

CREATE TABLE audit_origin (
    origin text NOT NULL               -- which log this is: no checkpoint of another one fits
);
CREATE UNIQUE INDEX audit_origin_one ON audit_origin ((true));
INSERT INTO audit_origin VALUES ('affidavit/' || gen_random_uuid());

CREATE FUNCTION audit_refuse_evidence_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is insert-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;

DO $$
DECLARE
    evidence text;
BEGIN
    FOREACH evidence IN ARRAY ARRAY['audit_leaves', 'audit_checkpoints', 'audit_anchors', 'audit_keys', 'audit_origin'] LOOP
        EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE OR DELETE OR TRUNCATE ON %I
                        FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_evidence_change()', evidence || '_keep', evidence);
        EXECUTE format('GRANT SELECT ON %I TO affidavit_sealer, affidavit_auditor', evidence);
    END LOOP;
END
$$;

GRANT INSERT ON audit_leaves, audit_checkpoints, audit_anchors, audit_keys TO affidavit_sealer;
GRANT SELECT ON audit_keys, audit_checkpoints TO affidavit_engine;
GRANT SELECT (log_id, timestamp, leaf_hash) ON audit_logs TO affidavit_sealer;
