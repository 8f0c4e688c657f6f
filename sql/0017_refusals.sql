-- Two more reasons to refuse: the asked fact is not in the book, and a question that names nothing.
SET LOCAL ROLE affidavit_owner;

COMMENT ON COLUMN audit_refusals.reason IS 'Why: not_covered, insufficient_evidence, attribute_not_found, underspecified, citation_failed, model_refused, selection_not_in_book, language_not_supported.';
