-- What turned the files of an edition into its passages: while that is the same, a file of the same bytes has the same passages,
-- and the next ingest takes them from here. Of earlier editions it is not known, so their files are read once more.
SET LOCAL ROLE affidavit_owner;

ALTER TABLE generations ADD COLUMN IF NOT EXISTS reading text CHECK (reading ~ '^[0-9a-f]{64}$');

GRANT UPDATE (reading) ON generations TO affidavit_engine;
