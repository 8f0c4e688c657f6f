-- ANALYZE keeps its samples of a table that has become empty: what was erased from these tables would stay in pg_statistic. So
-- there are none of their texts. The planner does not need them: all are found by their keys.
SET LOCAL ROLE affidavit_owner;

DO $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT attrelid::regclass AS relation, attname FROM pg_attribute
        WHERE attrelid IN ('audit_open'::regclass, 'audit_row_keys'::regclass, 'audit_hold_subjects'::regclass, 'chat_sessions'::regclass,
                           'chat_messages'::regclass, 'source_citations'::regclass)
          AND attnum > 0 AND NOT attisdropped AND atttypid IN ('text'::regtype, 'text[]'::regtype, 'jsonb'::regtype, 'json'::regtype, 'bytea'::regtype)
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STATISTICS 0', one.relation, one.attname);
    END LOOP;
END
$$;
