-- What the index of an edition holds, as a digest over it: a damaged index is found and rebuilt. Earlier editions get theirs
-- at the first check.
SET LOCAL ROLE affidavit_owner;

ALTER TABLE generations
    ADD COLUMN index_digest     text CHECK (index_digest ~ '^[0-9a-f]{64}$'),
    ADD COLUMN index_checked_at timestamptz;  -- when all that the index holds was last compared with it

GRANT UPDATE (index_digest, index_checked_at) ON generations TO affidavit_engine;
