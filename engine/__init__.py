"""The house. Start with answer.py: one question from the key to the receipt, in numbered steps.

Rooms
    engine/   answers questions          ingest/   turns a book into proven passages
    audit/    records, and proves        sql/      the database, forward only
    config/   every knob, the prompts, the calibration curves, the sample book

Floors: imports only go down, and `make check` enforces it (pyproject.toml, import-linter).

    cli, audit_commands, erasure_commands, serving, terminal      the console script; its `audit …` commands; the server;
                                                   how they print
    doctor                                         what is there, what is missing
    http                                           routes, bodies, the shape of an error, the page
    wiring                                         the only file that names concrete providers
    answer | ingest | providers | migrate          the request; the book; one file a vendor; the schema
    remembered                                     keys, editions and passages, while the database is away
    retrieve | gate | verify | cite | keys         the steps of a request, pure where they can be
    calibrate | lexical                            what a score means
    ports                                          the seams
    models                                         the nouns
    settings, errors, logs                         data; every way to fail; one JSON object a line
    audit                                          knows nothing of the rooms above

Where to change what (the same table stands in the README; a test keeps them equal)

    to change                   touch one file
    the threshold               config/engine.toml
    the prompt's wording        config/prompts/answer.md
    a new embedding vendor      engine/providers/<vendor>.py, and its line in engine/wiring.py
    a new refusal reason        engine/gate.py
    a new audit column          audit/record.py, a new file sql/NNNN_<what>.sql that adds it, and the line that fills it
    a new input format          ingest/read/<format>.py, and its line in ingest/read/__init__.py
    the shape of an error       engine/http/problems.py
    a limit per key             config/engine.toml
    the time budget             config/engine.toml
    an auditor's view           a new file sql/NNNN_<what>.sql
"""
