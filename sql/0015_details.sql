-- What a request was about, where that is no filter of a search: the query whose proof was read, the arguments of an
-- operator's command. Rows of schema_version 2 and before hold these in `filters`, and stay as they are.
SET LOCAL ROLE affidavit_owner;

-- A detached month that is still in the database inherits no column, and erasure sets the same columns to null in every
-- table. An interrupted detach is finished first: PostgreSQL refuses that once the columns of the two differ.
DO $$
DECLARE
    month record;
BEGIN
    FOR month IN
        SELECT m.relation, i.inhdetachpending AS is_pending
        FROM audit_months m JOIN pg_class c ON c.oid = m.relation
        LEFT JOIN pg_inherits i ON i.inhrelid = m.relation
        WHERE m.month IS NOT NULL AND i.inhdetachpending IS NOT FALSE
    LOOP
        IF month.is_pending THEN
            EXECUTE format('ALTER TABLE audit_logs DETACH PARTITION %s FINALIZE', month.relation);
        END IF;
        EXECUTE format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS details jsonb', month.relation);
    END LOOP;
END
$$;

ALTER TABLE audit_logs
    ADD COLUMN details jsonb;
COMMENT ON COLUMN audit_logs.details IS 'What the request was about, if that is no filter of a search.';

-- As PERSONAL in audit/proof/record.py.
CREATE OR REPLACE FUNCTION audit_personal_columns() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY['answer_text', 'chunks_returned', 'citations', 'client_address', 'details', 'end_user', 'filter_message',
        'filters', 'llm_prompt', 'llm_response', 'released_text', 'retrieval_query', 'selected_text', 'user_query_text']
$$;
