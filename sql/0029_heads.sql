-- The log of heads: one Merkle tree over the heads of all months in the order in which they were anchored, so that witnesses
-- elsewhere can vouch for the whole log with one signature. Insert-only, as all evidence.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE audit_head_entries (
    entry_index bigint PRIMARY KEY CHECK (entry_index >= 0),
    month       date NOT NULL CHECK (extract(day FROM month) = 1),
    tree_size   bigint NOT NULL CHECK (tree_size > 0),
    entry       text NOT NULL,
    leaf_hash   bytea NOT NULL UNIQUE CHECK (octet_length(leaf_hash) = 32),
    appended_at timestamptz NOT NULL
);
CREATE INDEX audit_head_entries_month ON audit_head_entries (month, tree_size);

CREATE TABLE audit_heads (
    tree_size  bigint PRIMARY KEY CHECK (tree_size > 0),
    note       text NOT NULL,
    created_at timestamptz NOT NULL
);

CREATE TABLE audit_head_anchors (
    tree_size     bigint PRIMARY KEY CHECK (tree_size > 0),
    note          text NOT NULL,
    vault_key     text NOT NULL,
    vault_version text NOT NULL,
    has_quorum    boolean NOT NULL,
    anchored_at   timestamptz NOT NULL
);

COMMENT ON TABLE audit_head_entries IS 'Entries of the log of heads: the signed heads of months, in the order in which they were anchored.';
COMMENT ON COLUMN audit_head_entries.entry_index IS 'Place in the log of heads, from 0 without gaps.';
COMMENT ON COLUMN audit_head_entries.month IS 'Month whose head it is.';
COMMENT ON COLUMN audit_head_entries.tree_size IS 'Size of the month''s tree at that head.';
COMMENT ON COLUMN audit_head_entries.entry IS 'Signed note of the month''s head, as it was anchored.';
COMMENT ON COLUMN audit_head_entries.leaf_hash IS 'SHA-256 of a zero byte and the entry: its leaf in the tree over the heads.';
COMMENT ON COLUMN audit_head_entries.appended_at IS 'When it was appended.';
COMMENT ON TABLE audit_heads IS 'Signed heads of the log of heads.';
COMMENT ON COLUMN audit_heads.tree_size IS 'Number of entries that the head covers.';
COMMENT ON COLUMN audit_heads.note IS 'Signed note: origin, size and root, under the log''s name.';
COMMENT ON COLUMN audit_heads.created_at IS 'When it was signed.';
COMMENT ON TABLE audit_head_anchors IS 'Heads of the log of heads in the vault, with the cosignatures of witnesses.';
COMMENT ON COLUMN audit_head_anchors.tree_size IS 'Number of entries that the head covers.';
COMMENT ON COLUMN audit_head_anchors.note IS 'Signed note with the cosignatures that it had when it was written into the vault.';
COMMENT ON COLUMN audit_head_anchors.vault_key IS 'Key in the vault.';
COMMENT ON COLUMN audit_head_anchors.vault_version IS 'Version in the vault.';
COMMENT ON COLUMN audit_head_anchors.has_quorum IS 'Whether the witnesses of the policy of that time cosigned it; false without a policy.';
COMMENT ON COLUMN audit_head_anchors.anchored_at IS 'When it was written.';

DO $$
DECLARE
    evidence text;
BEGIN
    FOREACH evidence IN ARRAY ARRAY['audit_head_entries', 'audit_heads', 'audit_head_anchors'] LOOP
        EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE OR DELETE OR TRUNCATE ON %I
                        FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_evidence_change()', evidence || '_keep', evidence);
        EXECUTE format('GRANT SELECT ON %I TO affidavit_sealer, affidavit_auditor', evidence);
        EXECUTE format('GRANT INSERT ON %I TO affidavit_sealer', evidence);
    END LOOP;
END
$$;
