"""One durable record for each request. Imports no other room.

    record      what is recorded, its canonical bytes, its hash (pure)
    ledger      the writer: open, close, close for the dead
    partitions  the months of audit_logs, made ahead
    vault       write-once bytes

A row's hash is SHA-256 over a zero byte and the row's canonical JSON: keys sorted, no spaces, UTF-8, times as
`2026-11-18T08:00:00.000000Z`. All columns take part but those that say how the row is kept (`spooled`, `salt`,
`leaf_hash`, `erased_at`). A personal column that is not null takes part as the hex of
SHA-256(salt + column name + zero byte + canonical JSON of the value), so that the hash survives the text.
"""
