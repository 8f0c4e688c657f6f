-- What a reader saw of an answer before it ended, and what looked like an instruction in what was only to be read.
SET LOCAL ROLE affidavit_owner;

ALTER TABLE audit_logs
    ADD COLUMN released_text text,      -- the sentences that were streamed, each on record before it was shown
    ADD COLUMN instruction_like jsonb;  -- where: "question", or the id of a passage

GRANT UPDATE (trail) ON audit_open TO affidavit_engine;
