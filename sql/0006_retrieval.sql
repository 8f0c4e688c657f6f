-- What a score means, said by labelled questions; where a reader's selection is looked for; and what retrieval did, in the log.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE calibrations (
    calibration_id text NOT NULL,   -- equal curves have equal ids, also of two books
    book_id        text NOT NULL REFERENCES books,
    calibration    jsonb NOT NULL,  -- the curves, and what they fit: embedder, dimension, normalisation
    certificate    jsonb NOT NULL,  -- the questions' hash and number, and what the gate does with them
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (book_id, calibration_id)
);
CREATE INDEX calibrations_book ON calibrations (book_id, created_at);

ALTER TABLE documents ADD COLUMN folded text NOT NULL DEFAULT '';  -- letters and digits only: see engine/selection.py

ALTER TABLE audit_logs
    ADD COLUMN calibration_kind text,
    ADD COLUMN best_score double precision,  -- of all passages considered: the gate's side of the threshold
    ADD COLUMN filter_message text,
    ADD COLUMN rerank text;                  -- the reranker's model, or why the order is the blend's

GRANT SELECT ON calibrations TO affidavit_engine, affidavit_auditor;
GRANT UPDATE (calibration) ON generations TO affidavit_engine;

-- What the scores of a published generation meant is evidence: records name it.
CREATE FUNCTION generations_keep_calibration() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the calibration of a published generation stays as it is' USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER generations_keep_calibration BEFORE UPDATE ON generations FOR EACH ROW
    WHEN (OLD.published_at IS NOT NULL AND NEW.calibration IS DISTINCT FROM OLD.calibration)
    EXECUTE FUNCTION generations_keep_calibration();
