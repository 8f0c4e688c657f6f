r"""One durable record for each request, and the proof of it. Imports neither `engine` nor `ingest`.

Modules
    auditor              offline verifier of a record or a package; `python -m audit.auditor` (pure)
    vault                write-once storage, and its local folder
    vault_copy           copies a vault into another one, verified
    as_of_backup         the vault as old as a backup, and what came later
    vault_owner          whose vault it is
    session              connections that set their role and settings themselves
    anchored             what the vault holds of the trees: anchors, breaks
    fast_json            canonical JSON of parsed rows, by a library in C (pure)
    worker               worker processes: framing, deadline, heartbeat
    worker_pool          worker processes of one module, set up once each
    progress             progress callback of long commands
    errors               the exception tree of audit (pure)
    markup               HTML and SVG, escaped by default (pure)
    proof/               what is recorded, hashed, signed and proven (pure)
        record           the columns of a record, and its hash
        canonical        canonical JSON
        merkle           Merkle tree
        keys             Ed25519 keys, and which of them count when
        note             signed notes of C2SP, whoever signed them
        checkpoint       signed tree heads, receipts, erasure signatures
        row_signature    the engine's signatures over rows and open records
        passage_id       the id of a passage: a hash of all that is stored of it
        quotation        a citation, compared with its passage
        bundle           the proof of one record as a file
        archive_format   the files of an archived month; archive_format.md specifies them
        verdict          findings and verdicts
    heads/               the log of heads, in C2SP's forms (pure)
        vkey             verifier keys of logs and cosigners, cosignatures
        head             origin, size, root; signed under the log's name
        tlog_proof       the proof that a month's head is in the log of heads, as a file
        policy           which witnesses there are, and how many must have cosigned
        submission       what is sent to a witness, and what its reply means
        proof_check      the verdict on such a proof
        vaulted          what the vault holds of the log of heads
        inspection       verifies a whole log of heads, and what witnesses have seen of it
    stamps/              time stamps of an authority (RFC 3161), verified offline (pure)
        token            the verifier: start with this one
        cms              a signed message with one signer
        chain            certificates: what the signer may, and its chain to a pinned one
        der              a strict reader of DER
        stored           the vault's time stamps
        stamp_file       the verdict on one that somebody was handed
    package/             the format of evidence packages, and their verifier (pure)
        verification     checks a whole package; start with this one
        processes        the same in several processes
        records          judges records, line by line
        heads            checks the months' heads
        elsewhere        checks what witnesses and authorities have signed
        coverage         what the period should hold
        files            reads a package by its manifest
        container        the ZIP in its one form
        manifest         names of the files, the signed manifest
        spreadsheet      the records as CSV
        ladder           the rungs of a record, and the verdicts on them
        program          the verifier as one file
    packing/             makes evidence packages
        making           the steps; start with this one
        chosen_rows      reads months, records, passages
        elsewhere        reads what witnesses and authorities have signed
        choice           which records (pure)
        pieces           finished pieces, from which a killed run goes on
        zip_writing      writes the ZIP as a stream
        readme           README.md of a package (pure)
        period_evidence  the log over the months of a period alone
    witness/             `python -m audit.witness`: signs a log's heads if it has only grown
        __main__         the program: its arguments, its key
        judgement        one request, judged
        memory           the last heads, on disk before they are signed
        server           HTTP
    access/              who read which personal columns
        access           the shape of one read (pure)
        shown_columns    the personal columns that a SQL statement reads; PostgreSQL is the judge
        relations        which tables and views hold personal columns (pure)
        policy           for whom they are masked (pure)
        approvals        requests to see what is masked, and who approved them (pure)
        reporting        reports of a login that can write no record
    ledger/              the writer: a request opens with a durable record and closes with its row
        ledger           open, note, close; start with this one
        delegated_keys   keys in memory that sign rows, delegated by a key that is far away
        numbers          numbers the records of a process (pure)
        heartbeat        says every minute which numbers must be in the log
        entry            one step of a request as text
        group_commit     group commit: one transaction for all entries that wait
        database_writer  connection of the writer, and the settings that a durable commit needs
        spool            write-ahead spool, while the database is unavailable
        orphans          closes requests of dead processes
        reported_reads   records what auditors' logins reported that they read
        write_probe      readiness: whether a record could be written now
        partitions       makes the months of audit_logs ahead
    sealing/             gives rows their place in the month's Merkle tree
        sealer           background loop: seal, anchor, retry
        admission        which rows may be sealed: those that the engine signed
        tree_growth      appends leaves and signs the new head
        anchors          copies signed heads into the vault
        head_growth      appends them to the log of heads and signs its head
        publication      asks witnesses to cosign that head, and writes it into the vault
        breaks           signed statements that a failover or a restore lost leaves
        signers          the keys that have signed this log
        stamper          has the newest head stamped once a day
        forged_rows      sets aside what the engine did not sign
        log_tables       queries, locks and checkpoints of this log
    checking/            verifies a whole log
        inspection       the verifier (pure)
        numbering        finds numbered records that are gone (pure)
        resumption       from where a verification that was stopped goes on (pure)
        judgement        judges one record (pure)
        signature_check  checks the signatures of many rows, with libsodium
        row_range        a range of leaves and its stored rows (pure)
        row_reader       reads the rows of a range, in one snapshot for several sessions
        range_judge      judges ranges of rows, in a process for each core
        stamp_check      compares time stamps with their heads (pure)
        lost_history     checks a break of a month's history (pure)
        evidence         data access for it
        prover           builds the proof of one record
        quotations       cuts recorded quotations again
        status           status report, and gauges for metrics
        month_tiers      which storage tier holds each month
    coverage/            what the log covers, for people
        months           how much of each month is sealed, anchored, witnessed, archived, missing, erased, held
        picture          months and tiers as SVG (pure)
        recent           read in the background, and kept for a moment
        verifications    runs of `audit verify`, and what a run's record says
    definitions/         what a reader's query goes through: as it was shipped, or not
        listing          the definitions as PostgreSQL has them, and their digests
        outsiders        what stands beside them and changes what is seen
        comparison       the differences, in words
    archive/             months leave the database and come back
        archiver         state machine of an archived month
        month_table      a month's table, detached, rebuilt, dropped
        export           writes a month as files
        packing          packs its records, in a process for each core
        encoder          records as lines of evidence (pure)
        rows             parser of these lines (pure)
        box              the encrypted box of a record's personal values, and zstd (pure)
        parquet          the typed copy (pure)
        reader           reads archive files from a vault or a folder
        verify           recomputes an archived month
        worker_process   second process for checking, with little memory
    query/               one table over all storage tiers
        tiers            the query engine
        dialect          SQL allowlist and dialect translation (pure)
        duckdb_session   DuckDB session, locked down, and its one view over all tiers
        archived_rows    archived months as an Arrow dataset
    reports/             what the log shows of each control, as HTML, JSON and OSCAL
        measuring        asks each control's query and judges what it counted; start with this one
        repeating        compares a report with what is measured anew (pure)
        forms            the forms of a report, and the data that each carries (pure)
        page             as one static page (pure)
        oscal            as assessment results of OSCAL (pure)
        document         a report as a value and as JSON (pure)
        judgement        met, not met, not measured, not applicable (pure)
        as_of            a period as of stated heads, and the whole text of a query over it (pure)
        pack             packs of controls, which packs/ declares as data (pure)
    export/              a stream of sealed rows to other systems
        following        delivers what is new, each row once and in order
        sealed_rows      rows of sealed leaves, from the database or the archive
        files            a file, standard output
        formats          JSON lines, CSV, OCSF (pure)
        position         what was delivered so far
    charts/              charts of the log over any period
        rollups/         counts of sealed rows by day
            rollup       what is counted, and its digest: the one definition (pure)
            fact         what is counted of one record (pure)
            buckets      histograms, and percentiles from them (pure)
            sealed_facts  reads it, from the database or from an archive
            stored       the tables of rollups
            keeping      makes what is missing
            checking     recomputes them from the sealed rows
        figures/         charts as data
            catalogue    every chart under its name
            choice       period and filter (pure)
            chart        a chart as data: picture, table, words (pure)
            chart_log    reads rollups, and counts what is in none yet
            by_day       charts along the days
            totals       charts of a whole period
            changes      the time line of what answers were made with
        drawing/         charts as SVG (pure)
            page         all charts of a page, with the numbers behind each (pure)
            drawn        as SVG, CSV and table
            columns      columns and lines
            bars         bars, ranges, time lines
            sheet        what every picture has
            axes         scales and their ticks
    review/              a sample of questions that nobody chose, judged by people
        sample           draws it from a stated population and a later head (pure)
        rubric           what reviewers say, and which verdicts count (pure)
        intervals        how sure a share is: Wilson, MOVER (pure)
        kappa            how far two reviewers agree: Cohen's kappa (pure)
        report           what the verdicts say (pure)
        drawing          the report as text and HTML (pure)
        sampling         states a population, draws and checks samples
        reviews          queues, verdicts
        blindness        what whoever judges does not see elsewhere either
    search/              finds records, and reads one with all that belongs to it
        finding          by filter and words, or by what somebody pasted; start with this one
        criteria         the filter, as an address and as SQL (pure)
        words            the text of a search as words and phrases (pure)
        pasted           which id, hash, receipt or proof somebody pasted (pure)
        archived         the same over archived months, as SQL for all tiers (pure)
        word_index       builds the search index of a month that is over
        reading          one record with its passages, its proof, its conversation
        standing         the ladder of one record (pure)
        marks            where quotations are in a text (pure)
        saved            saved searches, and frozen results
    holding/             legal holds: what they cover is not erased until two people release it
        hold             what a hold covers, and the signed lines of holds (pure)
        doubts           holds that are not as the log says (pure)
        tables           reads their lines, and the log's records of them
        holds            adds, releases and lists holds
    erasure/             forgets a person; every proof stays valid
        erase            empties records and destroys keys
        target           whose records, and on which basis
        personal         recognisers of personal data (pure)
        search           finds likely personal data
        spool_erasure    erases from the spool

The rest of this text specifies everything that a second verifier needs. `tests/second_verifier.py` was written from it alone;
`tests/data/proofs.json` has valid and invalid examples. ‖ joins bytes; "hex" means lower-case digits; text is UTF-8.

1. Canonical JSON
    RFC 8785. Objects with their keys in the order of their UTF-16 code units, no spaces. Strings with only the escapes
    \" \\ \b \f \n \r \t and \u00xx (lower-case digits) for other characters below U+0020. Numbers as JavaScript's
    Number.toString writes the nearest double: the shortest digits that round-trip; no fraction if it is whole; an
    exponent, with its sign, only from 1e21 on and below 1e-6; -0 is 0. NaN, infinities, halves of surrogate pairs and
    integers beyond 2^53 with other digits than these have no canonical form.

2. The row
    An object with a member for each column of `audit_logs` that is not null, under the column's name. Names are lower-case
    letters, digits and _, and begin with a letter. Numbers, booleans and JSON columns are themselves; ids are text with
    hyphens and lower-case digits; bytes are "\x" and hex; times are in UTC, 2026-11-18T14:00:00.000000Z, always six decimals.
    This specifies `schema_version` 4; 3, which had no writer, sequence, heartbeat and signature; and 2, which had no details
    either: the rules are the same for all. For any other version the verdict is CANNOT_TELL.

3. Commitments
    Personal columns are user_query_text, retrieval_query, chunks_returned, llm_prompt, llm_response, answer_text,
    released_text, citations, selected_text, filters, filter_message, details, end_user and client_address. Each that is
    not null has a commitment, the hex of

        SHA-256(salt ‖ column name ‖ 0x00 ‖ canonical JSON of the value)

    under the row's 32 random bytes in `salt`. Erasing a record nulls these columns and the salt, stores the commitments,
    and changes no hash.

4. The leaf
    SHA-256(0x00 ‖ canonical JSON of the hashed row). The hashed row has the row's columns, but not spooled, salt,
    leaf_hash, erased_at and signature, which describe how the row is stored; each personal column has its commitment as its
    value.

5. The tree
    There is one for each month, by the row's `timestamp` in UTC: the Merkle tree of RFC 6962 over the leaves in the order of
    their leaf_index, which counts from 0 without gaps. The root of one leaf is the leaf. The root of n > 1 leaves is
    SHA-256(0x01 ‖ root of the first k ‖ root of the others), where k is the largest power of two below n. An inclusion
    proof is the list of the sibling roots on the path from the leaf to the root, the lowest first. It has exactly as many
    as the leaf's place in a tree of that size needs; one more or less makes it invalid.

6. Keys
    Ed25519. A public key is written `affidavit+<id>+<base64(0x01 ‖ the 32 bytes)>`; its id is the hex of the first four
    bytes of SHA-256("affidavit" ‖ 0x0a ‖ 0x01 ‖ the 32 bytes), and `affidavit+<id>` is its key id. Base64 is always the
    standard alphabet, padded, with unused bits zero. A file of keys has one a line, the newest last. After the key a line
    may say until when it counts, or that another key delegated it (16); a signature counts by its own time:
    a row's by `timestamp`, a receipt's by `issued_at`, an erasure's by `erased_at`, a checkpoint's and a break's by `time`.

    A text of more than 4,096 bytes is signed as it is, or in its place

        affidavit digest<0a><hex of the text's SHA-256><0a>

7. The checkpoint
    A signed note (C2SP) of exactly these lines, each ended by 0x0a:

        <origin>/<YYYY-MM>                        the log, printable ASCII, and the month
        <size>                                    of the tree: decimal, no leading zero, at least 1
        <base64 of the root>                      32 bytes
        time <time>                               as in a row
        previous <YYYY-MM> <size> <base64>        the last checkpoint of the latest earlier month; omitted if there is none
        signed <index>                            every leaf of the month from this index on, which is at most the size, is of
                                                  a row that is signed; omitted by versions that did not sign rows
        break <kept> <lost> <hex>                 one for each break of the month's history before it (10), in their order
                                                  (an empty line)
        — affidavit <base64(id's 4 bytes ‖ signature's 64 bytes)>

    The dash is U+2014. The signature covers all lines before the empty one, with their line ends. There may be up to 100
    such lines, `— <name> <base64>`, the name without spaces and plus, and more than four bytes each. Those of which the name
    and the id are not of a given key that counts for heads at `time` (16) are ignored: others may sign too. Every other one
    must be valid, and there must be one.

    Once a checkpoint of the log has the line `signed`, every later one has it, in each month. It is the same in all later ones
    of its month, and 0 in a month that begins afterwards. A sealer then takes no row without a valid signature.

8. The row's signature
    The column `signature` has 68 bytes: the id's 4 bytes ‖ the signature's 64 bytes over

        affidavit row<0a><log_id><0a><hex of the leaf><0a>

    It is made before the row is written. A row needs a valid one, by a key that counts at its timestamp (16), if its
    schema_version is 4 or higher, or if its leaf_index is not below the index in the checkpoint's line `signed`. Whichever
    other row has one needs a valid one too.

9. The receipt
    An object with log_id, leaf_hash (hex), issued_at, key_id and signature (base64): the signature over

        affidavit receipt<0a><log_id><0a><leaf_hash><0a><issued_at, written as in a row><0a>

    In the JSON of the API `issued_at` may be any ISO 8601 text of the same moment. A receipt proves that the record must
    exist, not that it does: its verdict is UNSEALED, or TAMPERED if no key signed it that counts at `issued_at`. It is
    signed by the key of its row, so the delegation in the row's proof explains both.

10. The proof bundle
    One line: the canonical JSON of an object, and 0x0a. The file must be exactly these bytes. The object has exactly these members:

        format        "affidavit proof 1"
        row           the row without spooled, leaf_hash and erased_at, but with its salt and, if it has one, its signature
                      as "\x" and 136 digits of hex. No member is null.
        leaf_index    a whole number
        proof         the inclusion proof, each hash as hex
        checkpoint    the signed note
        commitments   only of an erased record: a non-empty object from personal columns to their commitments; then
                      the row has no personal column and no salt
        delegation    only if a delegated key signed the row: its line of a file of keys (16), with the same id as the row's
                      signature. It must count at the row's timestamp. Whoever has only the other key adds it to the given ones.

    The row has at least log_id, query_id (ids), timestamp and schema_version, and its salt is "\x" and 64 digits of hex.
    The record is proven if the checkpoint is signed by a given key, the row's month is the checkpoint's, 0 <= leaf_index < size,
    the proof leads from the row's leaf to the root, and the row has the signature that it needs. The size is taken from the signed checkpoint and nowhere else.
    Verdicts: VALID; ERASED if the record is proven and has commitments; CANNOT_TELL for another schema_version; TAMPERED for
    everything else.

11. Anchors
    From time to time a month's newest checkpoint is written into the vault, which stores each key once and for ever:
    `anchors/<YYYY-MM>/<size, 12 digits>.note` is the note, and `anchors/<YYYY-MM>/<from>-<to>.leaves` the leaves from index
    `from` to before `to`, 32 bytes each. Comparing them with the database also reveals what the holder of the signing key has
    rewritten, and what an older copy of the database lacks.

    If the database has lost leaves that are anchored, by a failover or a restore, an operator may state that the history is
    broken. The statement is a signed note, `breaks/<YYYY-MM>/<number, 4 digits>.note` in the vault and a line of `audit_breaks`:

        <origin>/<YYYY-MM>/break
        <number>                                  of the month's breaks, from 1
        kept <size> <base64 of the root>          the tree that the database still has; of no leaves, size 0 and SHA-256("")
        lost <size> <base64 of the root>          the largest tree that the vault has
        time <time>
        event <log_id>                            the record of the log that documents it
        basis <text>                              one line of at most 200 characters
                                                  (an empty line)
        — affidavit <base64>                      as of a checkpoint

    It is true if both roots are those of the vault's leaves. The leaves from `kept` to before `lost` are lost; later leaves
    take their places, each later checkpoint of the month has the line `break <kept size> <lost size> <hex of the note's
    SHA-256>`, and its anchors are in `anchors/<YYYY-MM>/break-<number>/`. What was lost stays in the vault, so receipts and
    proofs of lost records still show that they existed. The verdict on such a log is LOST_BY_FAILOVER for ever; on a proof it
    does not change. A break that is not signed, not in the vault or not true is TAMPERED.

12. Archives
    A month that leaves the database is seven files under `archive/<YYYY-MM>/` in the vault, each under the name
    `<hex of its SHA-256>.<name>`, and the last of them, manifest.json, lists the others and is signed. The evidence among
    them is the rows with their commitments in the order of the leaves, so an archive is proven without a database and
    without any secret; personal values are in encrypted boxes, each under a key of its own that stays in the database.
    `audit/proof/archive_format.md` specifies the rest, and is itself one of the seven.

13. Erasures
    `audit_erasures` has a line for each erased record: erasure_id, log_id, month, commitments, erased_at, basis, event,
    key_id, and signature (base64), the signature over

        affidavit erasure<0a><erasure_id><0a><log_id><0a><event><0a><erased_at, written as in a row><0a>

    `event` is the log_id of the record that documents the erasure, whose timestamp is erased_at. An erased record is proven
    within its log if one of its lines has commitments that give its leaf, is signed by a given key, and has its event in the
    log, sealed within a minute. Commitments are null in the line of a record that was only in the archive: the archive has them.

13a. Holds
    `audit_holds` has a line for each change of a legal hold, and `audit_erasure_requests` one for each change of an erasure that waits for
    the end of holds. A line is an object with its columns that are not null, as in a row; its key_id and signature (base64) are over

        affidavit hold<0a><canonical JSON of the line without key_id and signature><0a>

    or `affidavit erasure request` in place of the first two words. `change` is added or released, or asked or done; a release
    names its `hold_id`, and its `actor` and `approved_by` differ. A hold covers the records that meet each of its criteria: query_id,
    client_id, since (inclusive), until (exclusive), and subject, which stands for the spellings of a reader's name. It is the hex of
    SHA-256(salt ‖ "names" ‖ 0x00 ‖ canonical JSON of the list). `audit_hold_subjects` has list and salt by the hold's or the request's
    id; it must have those of a hold in force and of a request that waits, and loses the others with the erasure.

    `event` is the log_id of the record that documents the change, and the log has it. Conversely, a record with the endpoint
    `affidavit audit hold add` or `… release` and the outcome `recorded` has the reason `hold <hold_id>: added` or `: released`, and
    that line is in `audit_holds`. Anything else is TAMPERED.

14. The log of heads
    A second tree as in section 5. Its leaves are SHA-256(0x00 ‖ entry); an entry is the bytes of a checkpoint's note (7) with the
    log's own signature line and no other, as it was anchored. Each checkpoint that is anchored is appended, in the order of
    the anchors; a log that was anchored before it had a log of heads begins it with its next anchor.

    Its head is a signed note of exactly three lines, C2SP's tlog-checkpoint:

        <origin>                                  the log's name, for ever, as in section 7 before /<YYYY-MM>
        <size>                                    as in section 7
        <base64 of the root>
                                                  (an empty line)
        — <origin> <base64(id's 4 bytes ‖ signature's 64 bytes)>

    The key is the log's (6) under the key name <origin>: id = the first four bytes of SHA-256(origin ‖ 0x0a ‖ 0x01 ‖ the 32 bytes).
    A new key signs under the same name. Witnesses add lines, C2SP's tlog-cosignature: a witness's key is written
    `<name>+<id>+<base64(0x04 ‖ the 32 bytes)>`, its id the first four bytes of SHA-256(name ‖ 0x0a ‖ 0x04 ‖ the 32 bytes), and its line
    has base64(id ‖ 8 bytes ‖ 64 bytes): seconds since 1970, big-endian, and the signature over

        cosignature/v1<0a>time <seconds, decimal><0a><the three lines of the head>

    Lines of keys that are not given are ignored, and each line of a given key must be valid, as in section 7.

    In the vault `heads/<from>-<to>.entries` (12 digits each) has the entries from index `from` to before `to`, each as a JSON string in a
    line of its own, and `heads/<size, 12 digits>.note` the head of that size with the cosignatures that it had when it was
    written. Entries are written before the head that covers them; not every size has a head in the vault.

    That a month's head is in the log of heads is proven by a file in C2SP's tlog-proof@v1: the line `c2sp.org/tlog-proof@v1`, a line
    `extra <base64>`, which has the entry, a line `index <index>`, the inclusion proof, each hash as base64 in a line of its
    own, an empty line, the head. It is valid if a given key signed the head, the proof leads from the entry's leaf to the
    root, a given key signed the entry, and the entry's origin is the head's. Beside a bundle (10), the entry is the bundle's `checkpoint`,
    and `extra` may be missing. Which witnesses must have cosigned the head is said by a policy, C2SP's tlog-policy: `witness <name>
    <key> [<address>]`, `group <name> <number, any or all> <member>…`, `quorum <name or none>`, one a line. Verdicts: VALID; CANNOT_TELL
    if the head lacks the policy's quorum; TAMPERED for everything else.

    A witness refuses a head that is not a continuation of the last one that it cosigned, so a log whose database, vault and key
    were all set back to an older copy gets no cosignature: its witness has a head, signed by the log, that the log does not have.

15. Time stamps
    An authority (RFC 3161) may sign that a head of the log of heads (14) existed at a time. What is stamped is SHA-256 of the note's
    text: its three lines with their line ends, without the empty line and the signatures. The vault has, for the head of a size,

        stamps/<size, 12 digits>-<hex of the SHA-256 of the file, first 16 digits>.tsr    the TimeStampResp, DER, as it came
        stamps/chain-<hex of the SHA-256 of the file>.pem                                certificates, the signer's first

    A stamp may be one of any of the authorities whose certificates the verifier has pinned. Certificates of the token and of the vault
    only link the signer's to a pinned one. It is valid if all of this holds:

        response    status 0 or 1. Everything is DER, and nothing is left over at the end of anything.
        imprint     SHA-256 of the text, by the algorithm 2.16.840.1.101.3.4.2.1. Version 1, no critical extension.
        message     SignedData of version 3 over 1.2.840.113549.1.9.16.1.4, with exactly one signer, the digest that this signer uses as
                    the only one that is named, no revocation lists and no unsigned attributes.
        attributes  signed, each type once, each with one value: the content's type, the digest of the content, and the hash of the
                    signer's certificate (signing-certificate or signing-certificate-v2; both, if both are there)
        signature   over these attributes as a SET: RSA (PKCS #1 v1.5, or PSS with MGF1 of the same hash) or ECDSA, with
                    SHA-256, SHA-384 or SHA-512 for everything
        signer      is the certificate that the message names (issuer and serial, or key identifier). Its extended key usage is critical
                    and time stamping only; its key usage, if it has one, is for signatures.
        chain       of at most 8 certificates to a pinned one. All were valid at the time of the stamp, were not signed with a hash older than
                    SHA-2, have no critical extension but basic constraints, key usages and policies, and no RSA key below 2,048 bits.
                    Each issuer is an authority, its path length suffices, it may sign certificates, and it is not restricted to other
                    purposes.

    Verdicts: VALID; TAMPERED for a stamp that does not fit, and for one whose name is not that of its bytes; MISSING if the vault lacks the
    head, or if the log of heads is smaller than a head that was stamped; MISSING too if stamps are required, there is a head, and two days
    have passed since the last one. Without pinned certificates stamps are counted and not judged.

16. Revoked and delegated keys
    A line of a file of keys is one of

        <key>
        <key> revoked <time>
        <key> delegated <from> <until> <key id> <base64>

    with one space between its parts, and times as in a row, `from` before `until`. The base64 is 64 bytes: the signature of the
    key with that id, which is the line's parent, over

        affidavit delegation<0a><key><0a><from><0a><until><0a>

    A key is pinned if it has a line of the first form, or one of the second and none of the third. A line of the second form
    revokes its key from that time on, itself included, whatever its other lines say; of several the earliest counts.

    At a time, these count:
        for heads and breaks       the pinned keys that are not revoked then
        for rows, open records,    these, and a key with a line of the third form if it is not revoked then, from <= time < until,
        receipts and erasures      and its parent is pinned, is not revoked then and made the signature

    So a delegated key signs no head and delegates no further. A manifest of an archive has no time: a key counts for it that
    counts for heads at the begin of its month.

    Lines of the third form may come from anywhere: `audit_delegations`, `keys/<first 16 hex digits of the line's SHA-256>.pub` in the
    vault (the line and 0x0a), `keys.pub` of an archive, or a proof. Of lines that come from there, other forms
    and those of keys that are pinned are ignored: only the given file pins and revokes.

    The time of a row is the beginning of its request. So the writer's delegations overlap: each begins five minutes before its key
    is used, the key of a row is one that counts at its timestamp although it is written later, and no key is used for a
    timestamp within the last ten minutes before its end, so that the receipt is of its time too. A request of a process that died is
    closed later by another one under the old timestamp: that one gets a delegation for just these times.

17. The evidence package
    Format "affidavit package 1": a ZIP of the files below, in this order; those marked * may be absent. <month> is YYYY-MM.

        README.md                       for a stranger
        verifier.html *                 the page that checks it
        auditor.pyz                     the command that checks it: python3 auditor.pyz FILE.zip --public-key KEYS
        keys.pub                        the log's public keys, to be compared with keys that came another way
        records/<month>.jsonl           the chosen records of a month: lines that are each exactly a proof bundle (10), with
                                        rising leaf_index, all with the same checkpoint
        records.csv                     the same records for a spreadsheet
        checkpoints/<month>.note        the checkpoint of these bundles
        anchors/<month>/<size>.note *   heads that are anchored in the vault; the size has 12 digits; up to 64 a month
        consistency/<month>.json        consistency proofs from smaller trees of the month to the checkpoint
        heads/head.note *               the head of the log of heads (14)
        heads/<month>.tlog-proof *      proof that the log of heads has an anchored head of the month
        witnesses.policy *              which witnesses the maker asks; an auditor gives a policy of his own
        stamps/<name> *                 time stamps of heads/head.note (15), and their certificates
        passages.jsonl                  the passages that the records cite
        erasures.jsonl                  the signed lines (13) of the records that were erased
        coverage.json                   what the period should hold, and what of it is here
        queries.json                    how the records were chosen, in words and as SQL
        manifest.json                   lists the other files, and is signed

    Months are those of the period in which the log has a checkpoint; each has its files in records/, checkpoints/ and consistency/,
    even if no record of it was chosen. Within a folder the order is that of the names. There is no file of another name.

    The ZIP is written in one way only, so that no byte of it is unchecked. Numbers are little-endian. Each file is

        50 4b 03 04 ‖ v:2 ‖ 0:2 ‖ method:2 ‖ 0:2 ‖ 0x0021:2 ‖ crc32:4 ‖ packed:4 ‖ size:4 ‖ name length:2 ‖ x:2 ‖ name ‖ extra ‖ data

    without gaps from byte 0 on; method is 8 (deflate) or 0; v is 20, x the length of extra, which is empty. Then follows for each file, in the same order,

        50 4b 01 02 ‖ v:2 ‖ v:2 ‖ 0:2 ‖ method:2 ‖ 0:2 ‖ 0x0021:2 ‖ crc32:4 ‖ packed:4 ‖ size:4 ‖ name length:2 ‖ x:2 ‖ 0:2 ‖ 0:2
        ‖ 0:2 ‖ 0:4 ‖ offset:4 ‖ name ‖ extra

    and last 50 4b 05 06 ‖ 0:2 ‖ 0:2 ‖ files:2 ‖ files:2 ‖ bytes of the directory:4 ‖ offset of the directory:4 ‖ 0:2. If packed,
    size or offset of a file is 0xffffffff or more, it has v 45, all three (two in the first header) are written as 0xffffffff, and
    extra is 01 00 ‖ 16 or 24:2 ‖ size:8 ‖ packed:8 (‖ offset:8 in the directory). If a file is so, or the offset of the directory is
    0xffffffff or more, the directory is followed by 50 4b 06 06 ‖ 44:8 ‖ 45:2 ‖ 45:2 ‖ 0:4 ‖ 0:4 ‖ files:8 ‖ files:8 ‖ bytes of the
    directory:8 ‖ offset of the directory:8 ‖ 50 4b 06 07 ‖ 0:4 ‖ offset of 50 4b 06 06:8 ‖ 1:4, and the last part has the offset as
    0xffffffff. Data inflate to exactly size bytes with this CRC-32 and end there. There are at most 60,000 files; one whose name
    does not begin with records or passages has at most 256 MiB, a line at most 64 MiB.

    manifest.json is one line of canonical JSON and 0x0a, an object with exactly these members:

        format      "affidavit package 1"
        origin      of the log's checkpoints
        made_at     a time as in a row
        from, to    times: the records with from <= timestamp < to
        chosen      an object with case, client, user and query, each as far as it was given; in the redacted form user is true
        redacted    true or false
        event       the log_id of the record that documents the making
        counts      an object: records, withheld (records with commitments), erased, passages, anchors
        files       an object: each other file's name, with an object of its sha256 (hex) and size
        key_id      of the key that signed it
        signature   base64, over "affidavit package" ‖ 0x0a ‖ canonical JSON of the object without signature ‖ 0x0a

    A redacted package has commitments in place of all personal columns and the salt in every bundle, and no passages. Such a
    record is VALID, but ERASED if erasures.jsonl has it. In any other package a bundle with commitments is of an erased record.

    Files of JSON lines (passages, erasures) have canonical JSON and 0x0a in each line; coverage.json, queries.json and
    consistency/<month>.json are one such line.

        passages    rising by chunk_id. A passage has book_id, filename, url, chapter, section, chunk_index, text, sentences, start_sentence,
                    module, difficulty, tags, chunk_id, parent_document_id, start_page, end_page, end_sentence and content_hash,
                    null where it has no value. With H(…) = hex of SHA-256 of the JSON array of the arguments, written as canonical
                    JSON but with a space after each comma (and colon) outside of texts: content_hash = H(chapter, section,
                    chunk_index, text); parent_document_id = H(book_id, filename); chunk_id = H(book_id, filename, url, content_hash,
                    start_sentence, S, [module, difficulty, tags]), where S is sentences, or sentences without the sixth part of
                    those whose only sixth part is "statement". A sentence is [begin, end, heading, anchor, page, …];
                    start_page and end_page are the pages of the first and the last, end_sentence is start_sentence plus their number
                    minus 1.
        erasures    in the order of the records: erasure_id, log_id, event, erased_at, key_id and signature, as (13) signs them
        consistency an object: month, size (of the checkpoint), proofs: an object from each smaller size of an anchor in the package, and of
                    the line `previous` of a later checkpoint in the package, to its consistency proof of RFC 6962 (hex)
        coverage    an object: months, a list of objects with month, tier ("database", "archive" or "missing"), size (of the checkpoint),
                    records (of it in the package), unsealed (rows of the period without a leaf), anchored (the largest anchored
                    size, or 0), breaks (a list of objects with kept and lost); unsealed, of all months; is_whole, true if only the
                    period chose; and verify, the report of `affidavit audit verify` over the period's months (verdict,
                    checked, findings, findings_left_off, counted)
        queries     an object: words, and sql, a list of objects with statement and parameters

    A citation of a record (of its column citations) is an object with at least chunk_id, start, end, excerpt, chapter, filename, section,
    page and url. The passage is in passages.jsonl; excerpt is not empty and is the passage's text from start to before end, counted in
    Unicode code points; chapter and filename are the passage's; heading and page of the sentence with begin <= start < end are its section and
    page; its url is the passage's, with "#" and the sentence's anchor if that is neither null nor empty.

    records.csv is U+FEFF, then a line for the names and one for each record, months and records in their order. Lines end with 0x0d0a,
    fields are separated by commas. The columns are month and leaf_index; then of the row log_id, query_id, timestamp, endpoint,
    client_id, end_user, session_id, book_id, outcome, reason, http_status, success, user_query_text, selected_text, answer_text,
    citations, confidence_score, confidence_level, model_used, tokens_input, tokens_output, total_latency_ms, error_type,
    error_message, details, index_generation, code_version, schema_version; then withheld, the names of the bundle's
    commitments in their order, separated by spaces. A text is itself, with an apostrophe before it if it begins with = + - @ 0x09 or
    0x0d (a spreadsheet would calculate); any other value is its canonical JSON; what is absent is empty. A field that
    has a comma, a quotation mark, 0x0a or 0x0d is put in quotation marks, and each of its own is doubled.

    The verdict on a package is the worst of what was found; CANNOT_TELL if there is no record. The places of findings are
    "package" (ZIP, manifest, digests), "coverage", and for each record these rungs, from the bottom:

        words       the record's line of records.csv is the one that its bundle gives; its citations and their passages are as above.
                    A passage that is not there: MISSING. An erased record: ERASED. After the first line that differs: CANNOT_TELL
        row         the line is a proof bundle in its exact form, and the row has the signature that it needs (8). A record with
                    commitments that is in no signed line of erasures.jsonl, in a package that is not redacted: TAMPERED.
                    Another schema_version: CANNOT_TELL
        leaf        the proof leads from the row's leaf to the checkpoint's root, and leaf_index rises
        month       the row's month is the file's and the checkpoint's; the bundle's checkpoint is checkpoints/<month>.note; and the line `previous`
                    of a checkpoint fits the checkpoint of that earlier month, if it is in the package: the same root at the same size,
                    consistent by its proof if the size is smaller, MISSING if it is larger
        checkpoint  a given key has signed it, it is of this month, and its origin is the manifest's
        vault       each anchored head is signed by a given key, is of this month, origin and of the size in its name, and consistent with
                    the checkpoint; MISSING if it is larger. The record's rung is VALID below the largest anchored size, else CANNOT_TELL
        witness     a given key signed heads/head.note, whose origin is the manifest's (14), and it meets the auditor's policy;
                    heads/<month>.tlog-proof is under this note and proves an anchored head that is in the package. The record's rung
                    is VALID below that head's size, else CANNOT_TELL. CANNOT_TELL without a policy
        time stamp  a token of stamps/ is of the text of heads/head.note, by an authority that the auditor pinned (15). VALID for
                    the same records as witness; CANNOT_TELL without a token or without the authority's certificates

    If the auditor gave a policy that is not met, or that no head is there for, that is a finding CANNOT_TELL on its rung; so are
    certificates without any token.

    A rung that is CANNOT_TELL because there is nothing to judge makes nothing else worse. On "package": the ZIP is in
    its form, the manifest is signed by a given key, files and listed files are the same, with their sizes and digests. On "coverage":
    each month's records and size are what coverage.json says; each record is in the period and is of the chosen client and query; counts
    are those of the manifest; if is_whole, which is so exactly if chosen has no client, user and query, and all of the month is in the
    period, the records have all leaf_index from 0 to before size: else MISSING; and the verdict in verify, if it is not VALID,
    ERASED, ARCHIVED or UNSEALED, is a finding of its own.
"""
