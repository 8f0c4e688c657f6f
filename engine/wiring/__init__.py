"""The composition root (dependency injection by hand): it assembles concrete parts, and only the command line imports it."""

from engine.wiring.access import access_of, recording_read
from engine.wiring.audit_log import (
    archiver_of,
    check_clock,
    count_months_ahead,
    differences_of,
    drain_spool,
    failover_losses_of,
    foreign_vault_of,
    heartbeat_of,
    hold_doubts_of,
    identity_doubts_of,
    key_doubts_of,
    ledger_of,
    make_months,
    make_months_ahead,
    open_eraser,
    open_evidence,
    open_holds,
    open_keys,
    open_ledger,
    open_prover,
    open_sealed_rows,
    open_sealer,
    open_stamper,
    open_tiers,
    operator_events_of,
    origin_of,
    sealing,
    set_aside,
    shipped_definitions,
    stamp_rules_of,
    stamped_of,
    stamping,
    status_of,
    warnings_at_start,
    watch_of,
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
from engine.wiring.charts import keeping_rollups, open_chart_log, open_rollup_check, open_rollup_keeper
from engine.wiring.drill import drill_restore
from engine.wiring.house import has_database, open_database, open_existing_database, open_house
from engine.wiring.packages import open_making
from engine.wiring.providers import (
    LIMITERS,
    S3,
    collector_sink,
    embedder_of,
    generator_of,
    now,
    trace_exporter_of,
    vault_at,
    vault_of,
)
from engine.wiring.reload import Reloading, reloaded
from engine.wiring.reviews import (
    draw_when_anchored,
    open_reviews,
    open_sampling,
    person_named,
    state_population,
)
from engine.wiring.signing import count_signed_since, delegations_of, head_key, pin_key, signers_of

__all__ = [
    "LIMITERS", "S3", "SAMPLE_BOOK", "SAMPLE_TITLE", "Reloading", "access_of", "archiver_of", "check_clock", "collector_sink", "count_months_ahead",
    "count_signed_since", "delegations_of", "differences_of", "drain_spool", "drill_restore", "embedder_of", "failover_losses_of", "foreign_vault_of", "draw_when_anchored",
    "gate_of", "generator_of", "has_database", "head_key", "heartbeat_of", "hold_doubts_of", "identity_doubts_of", "keeping_rollups", "key_doubts_of", "ledger_of",
    "make_months", "make_months_ahead", "now", "open_chart_log", "open_database", "open_eraser", "open_evidence", "open_existing_database", "open_holds", "open_house",
    "open_ingest", "open_keys", "open_ledger", "open_making", "open_prover", "open_registry", "open_repair", "open_rollup_check", "open_rollup_keeper", "open_sealed_rows", "open_sealer", "open_reviews", "open_sampling",
    "open_sessions", "open_stamper", "open_tiers", "operator_events_of", "origin_of", "pin_key", "recording_read", "reloaded", "sealing", "set_aside", "person_named",
    "shipped_definitions", "signers_of", "stamp_rules_of", "stamped_of", "stamping", "status_of", "trace_exporter_of", "vault_at", "vault_of", "state_population",
    "warnings_at_start", "watch_of", "weaknesses_of",
]  # fmt: skip
