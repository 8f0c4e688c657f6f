"""How the log stands, by month."""

NEAR_GATE = 0.02  # so close to the threshold another calibration would have decided otherwise

_NEAR = (
    f"(round(abs(best_score - threshold)::numeric, 6) <= {NEAR_GATE})"  # .62 - .60 is more than .02 in binary
)

# A share that grows says that the questions drift away from what the gate was calibrated for.
STATUS = f"""
SELECT to_char(timestamp AT TIME ZONE 'UTC', 'YYYY-MM') AS month, count(*) AS records,
       count(*) FILTER (WHERE outcome = 'answered') AS answered,
       count(*) FILTER (WHERE outcome = 'refused') AS refused,
       count(*) FILTER (WHERE outcome NOT IN ('answered', 'refused')) AS failed,
       round(avg({_NEAR}::int) FILTER (WHERE outcome = 'answered'), 4)::float
           AS answers_near_gate,
       round(avg({_NEAR}::int) FILTER (WHERE outcome = 'refused'), 4)::float
           AS refusals_near_gate
FROM audit_logs GROUP BY month ORDER BY month
"""  # noqa: S608  our own number
