-- Books and their immutable generations. A passage stays as long as a record may cite it, so nobody may delete one.
SET LOCAL ROLE affidavit_owner;

CREATE TABLE books (
    book_id         text PRIMARY KEY CHECK (book_id ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    title           text NOT NULL,
    live_generation uuid,          -- the one that readers see; publishing is the update of this column
    created_at      timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE generations (
    generation_id uuid PRIMARY KEY,
    book_id       text NOT NULL REFERENCES books,
    embedder      text NOT NULL,
    dimension     integer NOT NULL,
    calibration   jsonb NOT NULL,  -- what a score of this generation means
    lexicon       jsonb NOT NULL,  -- BM25's frozen statistics: parameters, passages, average length
    content_hash  text NOT NULL,   -- of all passages and the settings that shaped them: equal means nothing to do
    state         text NOT NULL DEFAULT 'building' CHECK (state IN ('building', 'ready')),
    created_at    timestamptz NOT NULL DEFAULT now(),
    published_at  timestamptz
);

ALTER TABLE books ADD FOREIGN KEY (live_generation) REFERENCES generations;

CREATE TABLE documents (
    generation_id uuid NOT NULL REFERENCES generations ON DELETE CASCADE,
    filename      text NOT NULL,
    title         text NOT NULL,
    url           text NOT NULL,
    sha256        text NOT NULL,
    PRIMARY KEY (generation_id, filename)
);

CREATE TABLE chunks (
    chunk_id           text PRIMARY KEY CHECK (chunk_id ~ '^[0-9a-f]{64}$'),
    book_id            text NOT NULL REFERENCES books,
    parent_document_id text NOT NULL,
    filename           text NOT NULL,
    chapter            text NOT NULL,
    section            text NOT NULL,
    chunk_index        integer NOT NULL,
    text               text NOT NULL,
    sentences          jsonb NOT NULL,  -- [[start, end, heading, anchor, page], …]: where each sentence stands in the text
    start_page         text NOT NULL,
    end_page           text NOT NULL,
    start_sentence     integer NOT NULL,
    end_sentence       integer NOT NULL,
    url                text NOT NULL,
    module             integer,
    difficulty         text,
    tags               text[] NOT NULL DEFAULT '{}',
    content_hash       text NOT NULL
);

CREATE TABLE generation_chunks (
    generation_id uuid NOT NULL REFERENCES generations ON DELETE CASCADE,
    chunk_id      text NOT NULL REFERENCES chunks,
    position      integer NOT NULL,
    PRIMARY KEY (generation_id, position)
);
CREATE INDEX generation_chunks_chunk ON generation_chunks (chunk_id);

CREATE TABLE generation_terms (
    generation_id uuid NOT NULL REFERENCES generations ON DELETE CASCADE,
    term          text NOT NULL,
    term_id       integer NOT NULL,
    idf           double precision NOT NULL,
    PRIMARY KEY (generation_id, term)
);

GRANT SELECT, INSERT ON books, generations, documents, chunks, generation_chunks, generation_terms TO affidavit_engine;
GRANT UPDATE (title, live_generation) ON books TO affidavit_engine;
GRANT UPDATE (state, published_at) ON generations TO affidavit_engine;
GRANT DELETE ON generations, documents, generation_chunks, generation_terms TO affidavit_engine;
GRANT SELECT ON books, generations, documents, chunks, generation_chunks TO affidavit_auditor;
