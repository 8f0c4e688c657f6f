-- The language of each edition: its words are compared as in this language. Earlier editions have none: they were read as English,
-- whatever they were written in, and are asked in any language until the next ingest.
SET LOCAL ROLE affidavit_owner;

ALTER TABLE generations
    ADD COLUMN language text CHECK (language ~ '^[a-z]{2,3}$');

COMMENT ON COLUMN audit_refusals.reason IS 'Why: not_covered, insufficient_evidence, citation_failed, model_refused, selection_not_in_book, language_not_supported.';
