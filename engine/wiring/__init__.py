"""The composition root (dependency injection by hand): it assembles concrete parts, and only the command line imports it."""

from engine.wiring.audit_log import (
    archiver_of,
    check_clock,
    count_months_ahead,
    differences_of,
    failover_losses_of,
    foreign_vault_of,
    heartbeat_of,
    ledger_of,
    make_months,
    make_months_ahead,
    open_eraser,
    open_evidence,
    open_keys,
    open_ledger,
    open_prover,
    open_sealer,
    open_tiers,
    operator_events_of,
    sealing,
    shipped_definitions,
    signers_of,
    status_of,
    warnings_at_start,
    weaknesses_of,
)
from engine.wiring.books import (
    SAMPLE_BOOK,
    SAMPLE_TITLE,
    gate_of,
    open_ingest,
    open_registry,
    open_repair,
    open_sessions,
)
from engine.wiring.house import open_database, open_house
from engine.wiring.providers import LIMITERS, embedder_of, generator_of, now, vault_of

__all__ = [
    "LIMITERS", "SAMPLE_BOOK", "SAMPLE_TITLE", "archiver_of", "check_clock", "count_months_ahead", "differences_of",
    "embedder_of", "failover_losses_of", "foreign_vault_of", "gate_of", "generator_of", "heartbeat_of", "ledger_of",
    "make_months", "make_months_ahead", "now", "open_database", "open_eraser", "open_evidence", "open_house", "open_ingest",
    "open_keys", "open_ledger", "open_prover", "open_registry", "open_repair", "open_sealer", "open_sessions", "open_tiers",
    "operator_events_of", "sealing", "shipped_definitions", "signers_of", "status_of", "vault_of", "warnings_at_start",
    "weaknesses_of",
]  # fmt: skip
