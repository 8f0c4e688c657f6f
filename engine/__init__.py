"""The house. Start with answer.py: one question from the key to the receipt, in numbered steps.

Rooms
    engine/   answers questions          ingest/   turns a book into proven passages
    audit/    records, and proves        sql/      the database, forward only
    config/   every knob, the prompts, the calibration curves, the sample book

Layers: imports only go down, and `make check` enforces it (pyproject.toml, import-linter).

    cli                         the console script: one file for each group of commands
    http | wiring               routes, bodies, the page | the composition root, the only file that names providers
    house | database | signing  what the routes use | connections and roles | the policy of the signing key
    answer | ingest | providers | migrate | evaluation     the request | the book | one file a vendor | the schema
    outage                      caches that serve while the database is down
    admission | grounding       keys, limits, sessions | citations that are really in the passages
    retrieval                   search, blend, calibrate, gate: pure where it can be
    ports                       the interfaces that providers implement
    models                      the domain's types
    settings | data_folder      config/engine.toml as one value | locks and sockets of the data folder
    errors | logs               every way to fail | one JSON object a line
    audit                       imports nothing of the above

Where to change what (the same table stands in the README; a test keeps them equal)

    to change                   touch one file
    the threshold               config/engine.toml
    the prompt's wording        config/prompts/answer.md
    a new embedding vendor      engine/providers/<vendor>.py, and its line in engine/wiring.py
    a new refusal reason        engine/retrieval/gate.py
    a new audit column          audit/proof/record.py, a new file sql/NNNN_<what>.sql that adds it, and the line that fills it
    a new input format          ingest/read/<format>.py, and its line in ingest/read/__init__.py
    the shape of an error       engine/http/problems.py
    a limit per key             config/engine.toml
    the time budget             config/engine.toml
    an auditor's view           a new file sql/NNNN_<what>.sql
"""
