-- A request whose end could not be recorded in time says so, because its client got 503.
COMMENT ON COLUMN audit_requests_by_day.outcome IS
    'How they ended: answered, refused, served (a lookup), recorded (a change of a key), failed, client_gone, abandoned (its process was killed), not_acknowledged (its end was recorded too late or not at all: the client got 503).';
