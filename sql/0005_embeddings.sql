-- Vectors are kept by what they are made of, so that a re-ingest embeds only what is new, and an interrupted one goes on
-- where it stopped.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE embeddings (
    text_hash text NOT NULL,
    embedder  text NOT NULL,
    dimension integer NOT NULL,
    windows   bytea NOT NULL,       -- float32, little-endian, one row of `dimension` numbers for each window
    PRIMARY KEY (text_hash, embedder, dimension)
);
ALTER TABLE embeddings ALTER COLUMN windows SET STORAGE EXTERNAL;  -- numbers of this kind do not compress

GRANT SELECT, INSERT ON embeddings TO affidavit_engine;
