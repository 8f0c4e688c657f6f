-- Heartbeats are records of a process and of no request.
SET LOCAL ROLE affidavit_owner;

CREATE OR REPLACE VIEW audit_requests_by_day WITH (security_invoker = true) AS
SELECT (timestamp AT TIME ZONE 'UTC')::date AS day,
       outcome,
       sum(repeat_count) AS requests,
       count(*) AS records,
       count(DISTINCT client_id) AS clients,
       count(*) FILTER (WHERE spooled) AS spooled,
       (percentile_disc(0.5) WITHIN GROUP (ORDER BY total_latency_ms)) AS median_ms,
       max(total_latency_ms) AS slowest_ms
FROM audit_logs WHERE endpoint <> 'heartbeat' GROUP BY day, outcome;
