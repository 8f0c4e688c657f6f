-- What an edition hands on to the next, so that what is the same in both is not made again: in how many passages a word occurs,
-- where a document stands in the order of the book, with room beside it, and how many passages it has. Editions of before have
-- none of these, so the next one is made anew.
SET LOCAL ROLE affidavit_owner;

ALTER TABLE generation_terms ADD COLUMN IF NOT EXISTS passages integer NOT NULL DEFAULT 0 CHECK (passages >= 0);
ALTER TABLE documents ADD COLUMN IF NOT EXISTS place bigint CHECK (place >= 0);
ALTER TABLE documents ADD COLUMN IF NOT EXISTS passages integer NOT NULL DEFAULT 0 CHECK (passages >= 0);
