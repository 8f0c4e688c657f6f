-- Breaks of the history: signed statements that a failover or a restore has lost leaves of a month. The vault holds the same notes.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE audit_breaks (
    month      date NOT NULL CHECK (extract(day FROM month) = 1),
    number     integer NOT NULL CHECK (number > 0),
    kept_size  bigint NOT NULL CHECK (kept_size >= 0),
    lost_size  bigint NOT NULL CHECK (lost_size > kept_size),
    note       text NOT NULL,          -- a signed note: see audit/proof/checkpoint.py
    event      uuid NOT NULL,          -- the record of the log that documents it
    created_at timestamptz NOT NULL,
    PRIMARY KEY (month, number)
);
CREATE TRIGGER audit_breaks_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_breaks
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_evidence_change();
GRANT SELECT ON audit_breaks TO affidavit_sealer, affidavit_auditor;
GRANT INSERT ON audit_breaks TO affidavit_sealer;
