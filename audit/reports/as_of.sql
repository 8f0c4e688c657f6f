-- The log as of the heads of this report: rows that they seal, without personal columns.
WITH heads AS (
$heads
), records AS (
    SELECT s.month, s.leaf_index, s.sealed_at, s.leaf_hash = l.leaf_hash AS is_leaf, l.signature IS NOT NULL AS is_signed,
           l.log_id, l.timestamp, l.endpoint, l.outcome, l.reason, l.error_type, l.http_status, l.client_id, l.key_id, l.book_id,
           l.source_mode, l.model_requested, l.model_used, l.prompt_sha256, l.settings_sha256, l.code_version,
           l.index_generation, l.calibration_id, l.confidence_level, l.total_latency_ms, l.repeat_count, l.spooled,
           l.schema_version, l.writer, l.sequence, l.heartbeat
    FROM audit_logs l
    JOIN audit_leaves s ON s.log_id = l.log_id
    JOIN heads h ON h.month = s.month AND s.leaf_index < h.tree_size
    WHERE l.timestamp >= TIMESTAMPTZ '$since' AND l.timestamp < TIMESTAMPTZ '$until'
)
