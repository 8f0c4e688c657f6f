"""Map of the code. Start with answer.py: one question from the key to the receipt, in numbered steps.

Rooms
    engine/   answers questions          ingest/   turns a book into proven passages
    audit/    records, and proves        sql/      the database, forward only
    config/   every setting, the prompts, the calibration curves, the sample book

Modules
    answer               one request, from the key to the receipt; read this first
    trail                what the steps of a request record in its row
    house                the application container: what serves requests, and its readiness checks
    signing              policy of the signing key
    settings             config/engine.toml and the environment as one value
    models               the domain's types
    book_id              the judge of book IDs (pure)
    ports                the interfaces that providers implement
    errors               the exception tree of engine and ingest
    refusals             registry of refusal reasons, each with its sentence
    logs                 structured logging
    wiring/              the composition root: assembles concrete parts
        house            the engine for serving
        audit_log        what writes, seals, checks, archives and erases the log
        books            what publishes books
        providers        the only file that names vendors
    storage/             where data lives on this machine
        database         connections to PostgreSQL, each in one role
        migrate          schema migrations
        data_folder      paths and file locks of the data folder
    admission/           may this client ask
        keys             API keys
        end_user         parser for end users' names
        flood            rate limit for the rows of unauthenticated requests
        proxies          trusted proxies, and the address of a client behind them (pure)
        sessions         session store of conversations
        operator_events  audit trail of operators' actions
    retrieval/           search, blend, calibrate, gate
        retrieve         embed, search, score, order
        gate             enough evidence, or a refusal before a model is paid for (pure)
        calibrate        score calibration (pure)
        lexical          BM25 (pure)
        wording          a question as it is searched: spelling corrected, clause by clause (pure)
        word_forms       stems and n-grams of all languages but English (pure)
        raw_scores       similarity and attainment of a hit before their calibration (pure)
        words_only       an embedder for books that no embedder here reads
        languages        the language of a book and of a question (pure)
        stop_words       function words of the languages (pure)
        selection        locates a reader's selected text in the book (pure)
        index_digest     digest of what an index holds (pure)
        library          read-only repository of books and passages
    grounding/           citations that are really in the passages
        verify           checks the citations of a draft (pure)
        cite             renders citations (pure)
        certainty        the share of such answers that is right (pure)
        injection_flags  flags passages that read like instructions (pure)
    reading/             what a question asks for, and which sentences state it
        asked            the form of an answer (pure)
        facts            the fact that an answer has to state (pure)
        units            sentences that are quoted together (pure)
    outage/              caches that serve while the database is down
        cached_library   read-through caches of keys, editions and passages
        stale_cache      stale-if-error cache
    evaluation/          measures retrieval, gate and citations against labels
        evaluate         the evaluation of retrieval, gate and citations
        answers          the evaluation of whole answers
        evaluation_report  its table and its page (pure)
        reliability      is a confidence of 80 % right in 80 % (pure)
        certify          supervised calibration
        figures          bootstrap confidence intervals (pure)
        targets          retrieval metrics
        labelled_set     parser for labelled sets and other JSON Lines of labelled questions
        report           HTML templates (pure)
        charts           plots as SVG (pure)
    http/                the HTTP interface
        app              application factory
        routes           what each address takes, does and returns
        v1               bodies of /v1
        stream           one response, or server-sent events
        widget_contracts  contracts of the specifications' chat widgets
        erasures         POST /v1/erasures
        problems         error responses (RFC 9457)
        middleware       request id, security and rate-limit headers, access log, metrics
        request_context  what a request carries
        metrics          /metrics in Prometheus' text format
        openapi          /openapi.json
    connections/         TCP connections, and HTTP on them
        protocol         HTTP/1.1 with a read timeout; what is malformed
        door             accepts connections while there is room
        occupancy        who is connected, and who must leave when it is full (pure)
        descriptors      file descriptors of a process
        turned_away      503 while no worker is ready
    providers/           one file a vendor
        claude           generator: Claude
        extractive       generator without a model
        cohere           embedder and reranker: Cohere
        minilm           embedder in this process: English
        multilingual     embedder in this process: other languages
        edge             vector store: client of Qdrant Edge
        edge_worker      vector store: worker process that owns Qdrant Edge
        qdrant           vector store: Qdrant server
        limits           rate limits in memory or Redis
        postgres         embedded PostgreSQL
        s3               vault: S3 with Object Lock
    cli/                 the console script, one file for each group of commands
        __main__         python -m engine.cli
        main             the parser, signals and exit codes
        serving_commands  affidavit up, serve, migrate
        book_commands    affidavit ingest, books, ask, index …
        evaluation_commands  affidavit eval, calibrate
        key_commands     affidavit keys …, sessions …
        audit_commands   affidavit audit …
        erasure_commands  affidavit audit erase, retention, pii
        doctor           affidavit doctor: checks of an installation
        serving          server processes and their supervisor
        output           how commands print

Layers: imports only go down. The first contract in pyproject.toml lists the layers, and `make check` enforces them.

Where to change what (the README has the same table and says more; a test keeps them equal)

    to change                   touch
    the threshold               config/engine.toml; books calibrate to it at their next ingest, so to refuse more or less for good change probes_refused there
    the prompt's wording        config/prompts/answer.md
    a new embedding vendor      engine/providers/<vendor>.py, and its line in engine/wiring/providers.py
    a new refusal reason        engine/refusals.py, the line that returns it (engine/retrieval/gate.py or engine/grounding/verify.py), its words in engine/http/page/page.html, docusaurus/src/texts/ and README.md, and a new file sql/NNNN_<what>.sql for the view's comment
    a new audit column          audit/proof/record.py, a new file sql/NNNN_<what>.sql that adds it as sql/0015_details.sql does (to detached months too), and the line that fills it
    a new input format          ingest/read/<format>.py, its line in ingest/read/__init__.py, and the list of formats in README.md
    the shape of an error       engine/http/problems.py, and where others write the same form: docusaurus/src/gateway/problems.ts, docusaurus/recipes/nginx-engine.conf
    a limit per key             config/engine.toml
    the time budget             config/engine.toml; above 6 s in all also STOP_S in engine/cli/serving.py, FIRST_BYTE_MS in docusaurus/src/gateway/engine.ts and the recipe docusaurus/recipes/nginx-engine.conf
    an auditor's view           a new file sql/NNNN_<what>.sql, and its row and an example query in README.md
"""
