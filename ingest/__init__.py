"""From a book's files to a published generation. Start with pipeline.py.

pipeline    one book, top to bottom: read, split, compare, register, embed, publish
registry    which books, documents, passages and generations exist
split       sections to passages with stable ids (pure)
read/       bytes to sections of sentences with page, anchor and URL; one file a format
sentences   prose to sentences (pure)
"""
