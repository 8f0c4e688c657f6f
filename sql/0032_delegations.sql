-- Keys that sign rows for some hours, because the log's own key is far away: each a line of a file of keys. Nobody believes a
-- line by itself: a verifier takes those that a key signed which it has from elsewhere.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE audit_delegations (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    line       text NOT NULL UNIQUE CHECK (length(line) <= 500),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TRIGGER audit_delegations_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_delegations
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_evidence_change();
GRANT SELECT ON audit_delegations TO affidavit_engine, affidavit_sealer, affidavit_auditor, affidavit_archiver;
GRANT INSERT (line) ON audit_delegations TO affidavit_engine;
