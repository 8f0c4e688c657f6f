"""Ingest pipeline: from a book's files to a published generation. Start with pipeline.py.

Modules
    pipeline          read, split, compare, register, embed, publish: idempotent, and safe to kill
    files             finds the files of a book and reads each of them
    reading_version   of the code that turns files into passages
    spill             records on disk that are more than memory holds
    registry          the repository that an ingest writes to
    continuing        takes over from the live edition what did not change
    places            places of documents in the book's order (pure)
    indexing          builds an index, checks it, and rebuilds it from the database
    watched_index     the index as readers use it: rebuilt when it is damaged
    self_calibration  fits the score curves of a generation without labels
    split             chunking with overlap and stable ids (pure)
    kinds             what each sentence is: a statement, a row, an exercise, a link (pure)
    windows           the parts of a passage that are embedded (pure)
    sentences         sentence splitter (pure)
    word_lists        abbreviations and other words that the splitter knows (pure)
    read/             bytes of a file to sections of sentences; one file a format
        document      what all readers return
        sandbox       reads files in a worker process with limits
        address       URL and slug rules of Docusaurus (pure)
        export        reader for affidavit-content.json (pure)
        front_matter  parser for YAML front matter (pure)
        html          reader for HTML (pure)
        jsx           scanner for JSX (pure)
        markdown      reader for Docusaurus Markdown (pure)
        mdx           MDX plugin for markdown-it (pure)
        pdf           reader for PDF (pure)
        text          reader for plain text (pure)
"""
