-- As in 0026, with one lock more: one sealer at a time asks for the day's time stamp.
SET LOCAL ROLE affidavit_owner;

CREATE OR REPLACE FUNCTION audit_lock(wanted text, waits boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF wanted NOT IN ('anchor', 'claim', 'erasure', 'month', 'seal', 'stamp') THEN
        RAISE EXCEPTION 'there is no lock %', wanted;
    END IF;
    IF NOT EXISTS (SELECT FROM audit_locks WHERE name = wanted) THEN
        INSERT INTO audit_locks VALUES (wanted) ON CONFLICT DO NOTHING;
    END IF;
    IF waits THEN
        PERFORM FROM audit_locks WHERE name = wanted FOR UPDATE;
    ELSE
        PERFORM FROM audit_locks WHERE name = wanted FOR UPDATE SKIP LOCKED;
    END IF;
    RETURN FOUND;
END
$$;
