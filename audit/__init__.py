r"""One durable record for each request, and the proof of it. Imports neither `engine` nor `ingest`.

Modules
    auditor              offline verifier of one record; `python -m audit.auditor` (pure)
    vault                write-once storage, and its local folder
    anchored             what the vault holds of the trees: anchors, breaks
    worker               worker processes: framing, deadline, heartbeat
    progress             progress callback of long commands
    errors               the exception tree of audit (pure)
    proof/               what is recorded, hashed, signed and proven (pure)
        record           the columns of a record, and its hash
        canonical        canonical JSON
        merkle           Merkle tree
        keys             Ed25519 keys
        checkpoint       signed tree heads, receipts, erasure signatures
        row_signature    the engine's signatures over rows and open records
        bundle           the proof of one record as a file
        archive_format   the files of an archived month; archive_format.md specifies them
        verdict          findings and verdicts
    ledger/              the writer: a request opens with a durable record and closes with its row
        ledger           open, note, close; start with this one
        numbers          numbers the records of a process (pure)
        heartbeat        says every minute which numbers must be in the log
        entry            one step of a request as text
        group_commit     group commit: one transaction for all entries that wait
        database_writer  connection of the writer, and the settings that a durable commit needs
        spool            write-ahead spool, while the database is unavailable
        orphans          closes requests of dead processes
        write_probe      readiness: whether a record could be written now
        partitions       makes the months of audit_logs ahead
    sealing/             gives rows their place in the month's Merkle tree
        sealer           background loop: seal, anchor, retry
        admission        which rows may be sealed: those that the engine signed
        tree_growth      appends leaves and signs the new head
        anchors          copies signed heads into the vault
        breaks           signed statements that a failover or a restore lost leaves
        signers          the keys that have signed this log
        log_tables       queries, locks and checkpoints of this log
    checking/            verifies a whole log
        inspection       the verifier (pure)
        numbering        finds numbered records that are gone (pure)
        signature_check  checks rows' signatures in a second process
        lost_history     checks a break of a month's history (pure)
        evidence         data access for it
        prover           builds the proof of one record
        quotations       cuts recorded quotations again
        status           status report, and gauges for metrics
        month_tiers      which storage tier holds each month
    definitions/         what a reader's query goes through: as it was shipped, or not
        listing          the definitions as PostgreSQL has them, and their digests
        outsiders        what stands beside them and changes what is seen
        comparison       the differences, in words
    archive/             months leave the database and come back
        archiver         state machine of an archived month
        month_table      a month's table, detached, rebuilt, dropped
        export           writes a month as files
        rows             encoder and parser of archived records (pure)
        parquet          the typed copy (pure)
        reader           reads archive files from a vault or a folder
        verify           recomputes an archived month
        worker_process   second process for packing and checking
    query/               one table over all storage tiers
        tiers            the query engine
        dialect          SQL allowlist and dialect translation (pure)
        duckdb_session   DuckDB session, locked down, and its one view over all tiers
        archived_rows    archived months as an Arrow dataset
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
    standard alphabet, padded, with unused bits zero. A file of keys has one a line, the newest last.

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

    The dash is U+2014. The signature covers all lines before the empty one, with their line ends. The signature's id
    must be that of a key that was given to the verifier.

    Once a checkpoint of the log has the line `signed`, every later one has it, in each month. It is the same in all later ones
    of its month, and 0 in a month that begins afterwards. A sealer then takes no row without a valid signature.

8. The row's signature
    The column `signature` has 68 bytes: the id's 4 bytes ‖ the signature's 64 bytes over

        affidavit row<0a><log_id><0a><hex of the leaf><0a>

    It is made before the row is written. A row needs a valid one, by a given key, if its schema_version is 4 or higher, or if
    its leaf_index is not below the index in the checkpoint's line `signed`. Whichever other row has one needs a valid one too.

9. The receipt
    An object with log_id, leaf_hash (hex), issued_at, key_id and signature (base64): the signature over

        affidavit receipt<0a><log_id><0a><leaf_hash><0a><issued_at, written as in a row><0a>

    In the JSON of the API `issued_at` may be any ISO 8601 text of the same moment. A receipt proves that the record must
    exist, not that it does: its verdict is UNSEALED, or TAMPERED if none of the given keys signed it.

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
"""
