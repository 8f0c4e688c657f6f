"""Map of the code. Start with answer.py: one question from the key to the receipt, in numbered steps.

Rooms
    engine/   answers questions          ingest/   turns a book into proven passages
    audit/    records, and proves        sql/      the database, forward only
    config/   every setting, the prompts, the calibration curves, the sample book

Modules
    answer               one request, from the key to the receipt; read this first
    trail                what the steps of a request record in its row
    spans                what a trace shows of a finished request (pure)
    house                the application container: what serves requests, and its readiness checks
    signing              policy of the signing key
    settings             config/engine.toml and the environment as one value
    models               the domain's types
    book_id              the judge of book IDs (pure)
    cores                the processor cores that this process may use
    ports                the interfaces that providers implement
    errors               the exception tree of engine and ingest
    refusals             registry of refusal reasons, each with its sentence
    logs                 structured logging
    wiring/              the composition root: assembles concrete parts
        house            the engine for serving
        console          a console that only reads
        reload           settings that are taken over without a restart
        signing          which keys sign
        audit_log        what writes, seals, checks, archives and erases the log
        books            what publishes books
        access           the record of each read of personal columns
        charts           rollups and charts
        drawing          the process in which charts are drawn for the console
        drill            the drill of a restore
        packages         what makes evidence packages
        reviews          what samples questions and takes verdicts on them
        verification     verifies the whole log, for the command and for the console
        verifying        the process in which it does so for the console
        reports          what makes reports
        providers        the only file that names vendors
    storage/             where data lives on this machine
        database         connections to PostgreSQL, each in one role
        migrate          schema migrations
        pooler           refuses a connection pooler that shares sessions
        rights           what a login needs to migrate, and the statements that give it
        backup           what a backup is, from its files
        data_folder      paths and file locks of the data folder
    admission/           may this client ask
        keys             API keys
        public_tokens    short-lived tokens with which a site's pages ask (pure)
        key_trail        compares API keys with their records in the log (pure)
        end_user         parser for end users' names
        flood            rate limit for the rows of unauthenticated requests
        shared_rows      rows that stand for many requests
        overload/        more is asked than can be answered
            turnstile    bulkhead for questions with a bounded, fair queue
            refused_rows  the rows of those that found no room
            recent_keys  whose question it is, without a lookup
            fair_queue   round robin over clients (pure)
            pace         one long step of a question in each turn of the event loop
            concurrency_limit  how many questions at once, by their waits for the event loop and for a thread (pure)
        proxies          trusted proxies, and the address of a client behind them (pure)
        sessions         session store of conversations
        console_sessions  sessions of the console: a key or a person, exchanged for a cookie
        single_sign_on   binds a sign-in to its browser; the roles of a person's groups (pure)
        reads            reads of personal columns: masked, or on record
        operator_events  audit trail of operators' actions
    retrieval/           search, blend, calibrate, gate
        retrieve         embed, search, score, order
        gate             enough evidence, or a refusal before a model is paid for (pure)
        calibrate        score calibration (pure)
        lexical          BM25 (pure)
        wording          a question as it is searched: spelling corrected, clause by clause (pure)
        raw_scores       similarity and attainment of a hit before their calibration (pure)
        words_only       an embedder for books that no embedder here reads
        selection        locates a reader's selected text in the book (pure)
        index_digest     digest of what an index holds (pure)
        exact_search     exact search of a small generation in memory (pure)
        library          read-only repository of books and passages
    words/               what is known of words
        languages        the language of a book and of a question (pure)
        stop_words       function words of the languages (pure)
        suggestions      the nearest of the known words (pure)
        word_forms       stems and n-grams of all languages but English (pure)
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
        widgets/         contracts of the specifications' chat widgets, a file for each specification
            contract     what they have in common
            spec_000     /api/query, /api/chat
            spec_001     /api/v1/query
            spec_002     /chat/query, /chat/book/{book_id}/query
            spec_003     /query
            spec_004     /api/ask, /api/ask/stream, /ask
            lookups      /health, /api/health, /chapters
        page/            the page to ask on
            context      its routes: books, example questions, a passage in its context
            examples     questions that a book can answer (pure)
        console/         the pages that auditors open; how a page is added
            serving      its routes: one row for each request
            visit        what a page gets, and what it gives back
            layout       the frame of every page (pure)
            signing_in   keys for cookies; where a form may come from
            single_sign_on  signing in at an identity provider: away, and back
            records/     finds records, and reads one
                search   words, ids, filters, pages
                saved    saved searches and frozen results
                record   one record with its ladder of proof
                showing  what these pages have in common
            assets       static files, named by their content
            access       who read what, and requests to see what is masked
            coverage     which months the log has, and what is wrong with it
            charts       charts of sealed records, and their CSV
            reports      what the log shows of each control, and its files
            reviews      samples that people judge: queue, form, report
        records/         what a client may do with its own records
            feedback     POST /v1/feedback
            erasures     POST /v1/erasures
        cors             pages of other sites: CORS and public tokens
        problems         error responses (RFC 9457)
        middleware       request id, security and rate-limit headers, access log, metrics
        request_context  what a request carries
        metrics          /metrics in Prometheus' text format
        openapi          /openapi.json
    connections/         TCP connections, and HTTP on them
        protocol         HTTP/1.1 with a read timeout; what is malformed
        listening        the listening socket: shared, passed by systemd, left without a refused connection
        door             accepts connections while there is room
        occupancy        who is connected, and who must leave when it is full (pure)
        descriptors      file descriptors of a process
        event_loop       the event loop of a server: libuv's
        shedding         refuses questions for which the queue has no room
        turned_away      503 while no worker is ready
    providers/           one file a vendor
        claude           generator: Claude
        extractive       generator without a model
        cohere           embedder and reranker: Cohere
        minilm           embedder in this process: English
        multilingual     embedder in this process: other languages
        embedded         vector store: files in the data folder, or Qdrant Edge
        edge             vector store: client of Qdrant Edge
        edge_worker      vector store: worker process that owns Qdrant Edge
        qdrant           vector store: Qdrant server
        limits           rate limits in memory or Redis
        openid           identity provider: any that speaks OpenID Connect
        log_collector    where `audit export` sends rows: HTTP
        otlp             trace exporter: OTLP over HTTP
        postgres         embedded PostgreSQL
        scratch_postgres  a server for a backup that is tried
        s3               vault: S3 with Object Lock
        witnesses        witnesses over HTTP: C2SP's tlog-witness
        time_stamps      time stamp authority: RFC 3161 over HTTP
        signing_kms      signing key: AWS KMS
        signing_pkcs11   signing key: a PKCS#11 module
        signing_transit  signing key: Transit of HashiCorp Vault and OpenBao
    cli/                 the console script, one file for each group of commands
        __main__         python -m engine.cli
        main             the parser, signals and exit codes
        serving_commands  affidavit up, serve, console, migrate
        book_commands    affidavit ingest, books, ask, index …
        evaluation_commands  affidavit eval, calibrate
        key_commands     affidavit keys …, sessions …
        audit_log/       the commands `affidavit audit …`
            access_commands  access
            audit_commands  status, query, seal, verify, prove, archive …
            chart_commands  chart, rollup
            erasure_commands  erase, retention, pii
            hold_commands  hold
            review_commands  sample, review
            evidence_commands  package
            report_commands  report
            export_commands  export
            search_commands  search
        doctor           affidavit doctor: checks of an installation
        serving          server processes and their supervisor
        console          the console's pages alone
        manual           the manual as a second book, published in the background
        output           how commands print
    terminal/            what a person at a terminal meets
        parser           the parser of arguments: what was probably meant
        known_books      an unknown book, with those that are published
        completion       scripts that complete the command line (pure)
        hangup           SIGHUP: the terminal was closed, or the settings changed
        browser          opens the page for a person in front of a display
        table            tables that fit a width (pure)
        style            colour, where it is a terminal

Layers: imports only go down. The first contract in pyproject.toml lists the layers, and `make check` enforces them.

Where to change what (CONTRIBUTING.md has the same table and says more; a test keeps them equal)

    to change                   touch
    the threshold               config/engine.toml; books calibrate to it at their next ingest, so to refuse more or less for good change probes_refused there
    the prompt's wording        config/prompts/answer.md
    a new embedding vendor      engine/providers/<vendor>.py, and its line in engine/wiring/providers.py
    a new refusal reason        engine/refusals.py, the line that returns it (engine/retrieval/gate.py or engine/grounding/verify.py), its words in engine/http/page/page.html, docusaurus/src/texts/, and a new file sql/NNNN_<what>.sql for the view's comment
    a new audit column          audit/proof/record.py, a new file sql/NNNN_<what>.sql that adds it as sql/0015_details.sql does (to detached months too), and the line that fills it
    a new input format          ingest/read/<format>.py, its line in ingest/read/__init__.py, and the list of formats in docs/tutorials/your-own-book.md
    a chat widget's contract    engine/http/widgets/<specification>.py, its line in engine/http/widgets/__init__.py, and docs/reference/contracts.md
    the shape of an error       engine/http/problems.py, and where others write the same form: docusaurus/src/gateway/problems.ts, docusaurus/recipes/nginx-engine.conf
    a limit per key             config/engine.toml
    the time budget             config/engine.toml; above 6 s in all also STOP_S in engine/cli/serving.py, FIRST_BYTE_MS in docusaurus/src/gateway/engine.ts and the recipe docusaurus/recipes/nginx-engine.conf
    an auditor's view           a new file sql/NNNN_<what>.sql, and its row and an example query in docs/how-to/ask-the-log.md
"""
