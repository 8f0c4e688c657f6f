"""From a book's files to a published generation. Start with pipeline.py.

pipeline    one book, top to bottom: read, split, compare, register, embed, publish
files       which files are a book, and each of them read
registry    which books, documents, passages and generations exist
split       sections to passages with stable ids (pure)
read/       bytes to sections of sentences with page, anchor and URL; one file a format, run in sandbox.py
sentences   prose to sentences (pure)
"""
