"""Ingest pipeline: from a book's files to a published generation. Start with pipeline.py.

pipeline            one book, top to bottom: read, split, compare, register, embed, calibrate, publish
files               finds the files of a book and reads each
self_calibration    fits the score curves of a new generation with probe questions
registry            repository: books, documents, passages, generations, the cache of embeddings
split               chunking: sections to passages with stable ids (pure)
read/               parsers: the bytes of a file to sections of sentences with page, anchor and URL; one file a format
    sandbox                     runs them in a worker process with limits
    html, markdown, pdf, text   the formats
    export                      a whole site, as the Docusaurus plugin exports it
    mdx, jsx, front_matter      the syntax of Docusaurus' Markdown, its tags, its fields
    address                     Docusaurus' URLs and anchors
    document                    what every reader returns
sentences           sentence splitter (pure)
word_lists          its abbreviations and other words
"""
