-- Legal holds: what a hold covers is neither erased, nor ended by retention, nor dropped, until two people release it. The
-- database itself refuses; what asks here only asks sooner and says it better. SQLSTATE AF002: a hold covers it.
SET LOCAL ROLE affidavit_owner;

-- A line for each change of a hold; a hold's criteria narrow each other. Signed, and documented by the record `event` of the log.
CREATE TABLE audit_holds (
    hold_id     uuid NOT NULL,
    change      text NOT NULL CHECK (change IN ('added', 'released')),
    at          timestamptz NOT NULL,
    actor       text NOT NULL,          -- who ordered it, or asked for its release
    approved_by text,                   -- of a release: another person
    basis       text NOT NULL,
    subject     text,                   -- stands for the names in audit_hold_subjects; null: of everybody
    query_id    uuid,
    client_id   text,
    since       timestamptz,
    until       timestamptz,            -- exclusive
    event       uuid NOT NULL,
    key_id      text NOT NULL,
    signature   text NOT NULL,          -- see audit/__init__.py
    PRIMARY KEY (hold_id, change),
    CHECK (since < until),
    CHECK ((change = 'added') = (num_nonnulls(subject, query_id, client_id, since, until) > 0)),
    CHECK ((change = 'added') = (approved_by IS NULL)),
    CHECK (lower(btrim(approved_by)) <> lower(btrim(actor)))
);

-- Requests for an erasure that wait for the end of a hold, and their end.
CREATE TABLE audit_erasure_requests (
    request_id  uuid NOT NULL,
    change      text NOT NULL CHECK (change IN ('asked', 'done')),
    at          timestamptz NOT NULL,
    basis       text NOT NULL,
    subject     text,
    query_id    uuid,
    event       uuid NOT NULL,
    key_id      text NOT NULL,
    signature   text NOT NULL,
    PRIMARY KEY (request_id, change)
);

-- Whom a hold or a request is about. It goes with the erasure that it waits for, and the salt with it.
CREATE TABLE audit_hold_subjects (
    id    uuid PRIMARY KEY,
    names text[] NOT NULL CHECK (cardinality(names) > 0),  -- as it was asked for, then every other spelling
    salt  bytea NOT NULL CHECK (octet_length(salt) = 32)
);

CREATE TRIGGER audit_holds_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_holds
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_evidence_change();
CREATE TRIGGER audit_erasure_requests_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_erasure_requests
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_evidence_change();
CREATE TRIGGER audit_hold_subjects_keep BEFORE UPDATE OR TRUNCATE ON audit_hold_subjects
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_evidence_change();
GRANT SELECT ON audit_holds, audit_erasure_requests, audit_hold_subjects TO affidavit_auditor, affidavit_archiver;

-- What a hold needs to know of an archived record. Null in a key that an earlier version made: such a record counts as held
-- if its month may hold it.
ALTER TABLE audit_row_keys ADD COLUMN client_id text, ADD COLUMN "timestamp" timestamptz;
DO $$
DECLARE
    source regclass;
BEGIN
    FOR source IN SELECT * FROM audit_tables() LOOP
        EXECUTE format('UPDATE audit_row_keys k SET client_id = l.client_id, timestamp = l.timestamp FROM %s l
                        WHERE l.log_id = k.log_id', source);
    END LOOP;
END
$$;

-- Whether a hold (the first seven) covers a record (the others). A record in a table has a reader's name, an archived one what
-- stands for it. No names: of everybody; so a hold whose names somebody has deleted covers more than it did, and not less.
CREATE FUNCTION audit_covers(
    names text[], subjects bytea[], turns uuid[], held_query uuid, held_client text, since timestamptz, until timestamptz,
    query uuid, reader text, who bytea, client text, at timestamptz, of_month date) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT (held_query IS NULL OR query = held_query)
       AND (names IS NULL OR reader = ANY (names) OR who = ANY (subjects) OR query = ANY (turns))
       AND (held_client IS NULL OR client = held_client OR at IS NULL)
       AND (since IS NULL OR at >= since OR (at IS NULL AND (of_month + interval '1 month') AT TIME ZONE 'UTC' > since))
       AND (until IS NULL OR at < until OR (at IS NULL AND of_month::timestamp AT TIME ZONE 'UTC' < until))
$$;

-- The holds in force. `turns`: the queries of the conversations that these readers had.
CREATE FUNCTION audit_active_holds(with_turns boolean DEFAULT true)
RETURNS TABLE (hold_id uuid, names text[], subjects bytea[], turns uuid[], query_id uuid, client_id text,
               since timestamptz, until timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT h.hold_id, s.names,
           (SELECT array_agg(sha256(pepper || convert_to(name, 'UTF8'))) FROM audit_pepper, unnest(s.names) AS name),
           CASE WHEN with_turns AND s.names IS NOT NULL THEN ARRAY(SELECT audit_turns(s.names)) END,
           h.query_id, h.client_id, h.since, h.until
    FROM audit_holds h LEFT JOIN audit_hold_subjects s ON s.id = h.hold_id
    WHERE h.change = 'added' AND NOT EXISTS (SELECT FROM audit_holds r WHERE r.hold_id = h.hold_id AND r.change = 'released')
$$;

-- Whether a hold covers this record. Volatile: it must see a hold that was added while its statement waited for a lock.
CREATE FUNCTION audit_is_held(query uuid, reader text, who bytea, client text, at timestamptz, of_month date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM audit_holds) AND EXISTS (
        SELECT FROM audit_active_holds(EXISTS (SELECT FROM chat_messages m WHERE m.query_id = query)) h
        WHERE audit_covers(h.names, h.subjects, h.turns, h.query_id, h.client_id, h.since, h.until,
                           query, reader, who, client, at, of_month));
END
$$;

-- Whether the record of this query is held, wherever it is.
CREATE FUNCTION audit_is_turn_held(query uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    source regclass;
    is_held boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM audit_active_holds(false)) THEN
        RETURN false;
    END IF;
    FOR source IN SELECT * FROM audit_tables() LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s l WHERE l.query_id = $1
            AND audit_is_held(l.query_id, l.end_user, NULL, l.client_id, l.timestamp, NULL))', source) INTO is_held USING query;
        IF is_held THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN EXISTS (SELECT FROM audit_row_keys k WHERE k.query_id = query
                   AND audit_is_held(k.query_id, NULL, k.subject, k.client_id, k.timestamp, k.month));
END
$$;

CREATE FUNCTION audit_is_open_held(trail jsonb, opened_at timestamptz) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = public, pg_temp AS $$
    SELECT audit_is_held((trail ->> 'query_id')::uuid, trail ->> 'end_user', NULL, trail ->> 'client_id',
                         coalesce((trail ->> 'timestamp')::timestamptz, opened_at), NULL)
$$;

CREATE FUNCTION audit_say_held(what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', what || ' is under a hold and stays' USING ERRCODE = 'AF002';
END
$$;

-- As in 0026, and neither way past it leads to a record that is held.
CREATE OR REPLACE FUNCTION audit_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND TG_LEVEL = 'ROW' AND current_user = 'affidavit_owner' THEN
        IF audit_is_erased(to_jsonb(OLD), to_jsonb(NEW)) THEN
            IF audit_is_held(OLD.query_id, OLD.end_user, NULL, OLD.client_id, OLD.timestamp, NULL) THEN
                PERFORM audit_say_held('the record ' || OLD.log_id);
            END IF;
            RETURN NEW;
        END IF;
    END IF;
    IF TG_OP = 'DELETE' AND TG_LEVEL = 'ROW' AND current_user = 'affidavit_owner' THEN
        IF EXISTS (SELECT FROM audit_set_aside s WHERE s.log_id = OLD.log_id AND s.timestamp = OLD.timestamp)
           AND NOT EXISTS (SELECT FROM audit_leaves l WHERE l.log_id = OLD.log_id) THEN
            IF audit_is_held(OLD.query_id, OLD.end_user, NULL, OLD.client_id, OLD.timestamp, NULL) THEN
                PERFORM audit_say_held('the row ' || OLD.log_id);
            END IF;
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'audit_logs is insert-only: % is refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;

-- The key of an archived record is all that an erasure destroys of it. Under the erasures' lock, so that no hold is added meanwhile.
CREATE FUNCTION audit_lock_row_keys() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF TG_OP <> 'DELETE' THEN
        RAISE EXCEPTION 'the keys of archived records stay as they are' USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM audit_lock('erasure');
    RETURN NULL;
END
$$;
CREATE FUNCTION audit_refuse_held_key() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF audit_is_held(OLD.query_id, NULL, OLD.subject, OLD.client_id, OLD.timestamp, OLD.month) THEN
        PERFORM audit_say_held('the archived record ' || OLD.log_id);
    END IF;
    RETURN OLD;
END
$$;
CREATE TRIGGER audit_row_keys_lock BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_row_keys
    FOR EACH STATEMENT EXECUTE FUNCTION audit_lock_row_keys();
CREATE TRIGGER audit_row_keys_held BEFORE DELETE ON audit_row_keys
    FOR EACH ROW EXECUTE FUNCTION audit_refuse_held_key();

-- Conversations: what was said in them is a copy of held records.
CREATE FUNCTION audit_refuse_held_turn() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF audit_is_turn_held(OLD.query_id) THEN
        PERFORM audit_say_held('a turn of the conversation');
    END IF;
    RETURN OLD;
END
$$;
CREATE TRIGGER chat_messages_held BEFORE DELETE ON chat_messages
    FOR EACH ROW EXECUTE FUNCTION audit_refuse_held_turn();

-- As in 0012, without those that are held; and how many those are.
CREATE FUNCTION audit_is_session_held(session uuid) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT EXISTS (SELECT FROM audit_active_holds(false)) AND EXISTS (
        SELECT FROM chat_messages m WHERE m.session_id = session AND audit_is_turn_held(m.query_id))
$$;
CREATE OR REPLACE FUNCTION purge_old_chat_sessions(days integer DEFAULT 30) RETURNS integer LANGUAGE sql AS $$
    WITH deleted AS (
        DELETE FROM chat_sessions WHERE last_activity_at < now() - make_interval(days => days)
            AND NOT audit_is_session_held(id) RETURNING id
    )
    SELECT count(*)::integer FROM deleted
$$;
CREATE FUNCTION audit_held_sessions(days integer) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT count(*) FROM chat_sessions
    WHERE last_activity_at < now() - make_interval(days => days) AND audit_is_session_held(id)
$$;

-- As in 0018 and 0026, unless they are held.
CREATE OR REPLACE FUNCTION audit_empty_open(emptied uuid, signed bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM audit_lock('erasure');
    IF EXISTS (SELECT FROM audit_open o WHERE o.log_id = emptied AND audit_is_open_held(o.trail, o.opened_at)) THEN
        PERFORM audit_say_held('the open request ' || emptied);
    END IF;
    UPDATE audit_open SET trail = trail - audit_personal_columns() || '{"user_query_text": ""}', signature = signed
    WHERE log_id = emptied;
END
$$;
CREATE OR REPLACE FUNCTION audit_put_aside(unsigned json, opened uuid[], event uuid) RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = public, pg_temp SET timezone = 'UTC' SET bytea_output = 'hex' AS $$
DECLARE
    named text := 'JOIN json_to_recordset($1) AS r(log_id uuid, "timestamp" timestamptz) ON r.log_id = l.log_id AND r.timestamp = l.timestamp';
    source regclass;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM audit_lock('erasure');
    FOR source IN SELECT * FROM audit_tables() LOOP
        RETURN QUERY EXECUTE format('SELECT to_jsonb(l) FROM %s l %s', source, named) USING unsigned;
        EXECUTE format(
            'INSERT INTO audit_set_aside (log_id, timestamp, kept, event)
             SELECT l.log_id, l.timestamp, to_jsonb(l) - audit_personal_columns() - ''salt'', $2 FROM %s l %s', source, named)
        USING unsigned, event;
        EXECUTE format(
            'DELETE FROM %s l USING json_to_recordset($1) AS r(log_id uuid, "timestamp" timestamptz)
             WHERE r.log_id = l.log_id AND r.timestamp = l.timestamp', source) USING unsigned;
    END LOOP;
    IF EXISTS (SELECT FROM audit_open o WHERE o.log_id = ANY (opened) AND audit_is_open_held(o.trail, o.opened_at)) THEN
        PERFORM audit_say_held('an open request');
    END IF;
    RETURN QUERY SELECT to_jsonb(o) FROM audit_open o WHERE o.log_id = ANY (opened);
    -- Whoever forges one may leave anything in it: what is no object has no columns that could be told from personal ones.
    INSERT INTO audit_set_aside (log_id, timestamp, event, kept)
    SELECT o.log_id, o.opened_at, event,
           to_jsonb(o) || jsonb_build_object(
               'trail', CASE jsonb_typeof(o.trail) WHEN 'object' THEN o.trail - audit_personal_columns() END)
    FROM audit_open o WHERE o.log_id = ANY (opened);
    DELETE FROM audit_open o WHERE o.log_id = ANY (opened);
END
$$;

-- As in 0014, without what is held, so that retention passes it over.
CREATE OR REPLACE FUNCTION audit_to_erase(
    who text[], queries uuid[], since timestamptz, until timestamptz, passed_over uuid[], most integer)
RETURNS TABLE (leaf_hash bytea, found json)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET timezone = 'UTC' SET bytea_output = 'hex' SET extra_float_digits = 1 AS $$
DECLARE
    listed text := (
        SELECT string_agg(CASE WHEN atttypid = 'timestamptz'::regtype
            THEN format('to_char(l.%1$I AT TIME ZONE ''UTC'', ''YYYY-MM-DD"T"HH24:MI:SS.US"Z"'') AS %1$I', attname)
            ELSE format('l.%I', attname) END, ', ' ORDER BY attnum)
        FROM pg_attribute WHERE attrelid = 'audit_logs'::regclass AND attnum > 0 AND NOT attisdropped);
    condition text := CASE WHEN since IS NULL THEN '(end_user = ANY ($1) OR query_id = ANY ($2))'
        ELSE 'timestamp >= $3 AND timestamp < $4 ORDER BY timestamp' END;
    unheld text := CASE WHEN EXISTS (SELECT FROM audit_active_holds(false))
        THEN 'NOT audit_is_held(l.query_id, l.end_user, NULL, l.client_id, l.timestamp, NULL)' ELSE 'true' END;
    source regclass;
BEGIN
    FOR source IN SELECT * FROM audit_tables() LOOP
        RETURN QUERY EXECUTE format(
            'SELECT (SELECT s.leaf_hash FROM audit_leaves s WHERE s.log_id = r.log_id), row_to_json(r) FROM (
                SELECT %s FROM %s l WHERE erased_at IS NULL AND log_id <> ALL ($5) AND %s AND %s LIMIT $6) r',
            listed, source, unheld, replace(condition, 'timestamp', 'l.timestamp'))
        USING who, queries, since, until, passed_over, most;
    END LOOP;
END
$$;
CREATE OR REPLACE FUNCTION audit_keys_to_destroy(who text[], queries uuid[], before date, most integer)
RETURNS TABLE (log_id uuid, query_id uuid, month date)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT k.log_id, k.query_id, k.month FROM audit_row_keys k
    WHERE (k.subject = ANY (SELECT sha256(pepper || convert_to(name, 'UTF8')) FROM audit_pepper, unnest(who) AS name)
           OR k.query_id = ANY (queries) OR k.month < before)
      AND NOT EXISTS (
        SELECT FROM audit_active_holds() h
        WHERE audit_covers(h.names, h.subjects, h.turns, h.query_id, h.client_id, h.since, h.until,
                           k.query_id, NULL, k.subject, k.client_id, k.timestamp, k.month))
    LIMIT most
$$;

-- As in 0026, and the one that keeps holds and erasures of a person apart: who adds or releases a hold has it alone, erasures
-- share it from their first look for a hold to their end.
INSERT INTO audit_locks VALUES ('hold');
CREATE OR REPLACE FUNCTION audit_lock(wanted text, waits boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF wanted NOT IN ('anchor', 'claim', 'erasure', 'hold', 'month', 'seal', 'stamp') THEN
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
CREATE FUNCTION audit_share_holds() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM audit_locks WHERE name = 'hold') THEN
        INSERT INTO audit_locks VALUES ('hold') ON CONFLICT DO NOTHING;
    END IF;
    PERFORM FROM audit_locks WHERE name = 'hold' FOR SHARE;
END
$$;

CREATE FUNCTION audit_change_hold(line json, names text[], salt bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    changed audit_holds := json_populate_record(NULL::audit_holds, line);
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM audit_lock('hold');
    PERFORM audit_lock('erasure');
    IF changed.change = 'released' AND NOT EXISTS (
        SELECT FROM audit_holds h WHERE h.hold_id = changed.hold_id AND h.change = 'added')
    THEN
        RAISE EXCEPTION 'there is no such hold' USING ERRCODE = 'no_data_found';
    END IF;
    IF (changed.subject IS NULL) <> (names IS NULL) THEN
        RAISE EXCEPTION 'a hold on a person has names' USING ERRCODE = 'check_violation';
    END IF;
    INSERT INTO audit_holds SELECT changed.*;
    IF names IS NOT NULL THEN
        INSERT INTO audit_hold_subjects VALUES (changed.hold_id, names, salt);
    END IF;
END
$$;

CREATE FUNCTION audit_ask_erasure(line json, names text[], salt bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    asked audit_erasure_requests := json_populate_record(NULL::audit_erasure_requests, line);
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    INSERT INTO audit_erasure_requests SELECT asked.*;
    IF names IS NOT NULL THEN
        INSERT INTO audit_hold_subjects VALUES (asked.request_id, names, salt);
    END IF;
END
$$;

-- The end of an erasure: its requests are done, and no hold and no request names the person any more. One in force still does.
CREATE FUNCTION audit_end_requests(lines json, who text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    ended bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    INSERT INTO audit_erasure_requests SELECT * FROM json_populate_recordset(NULL::audit_erasure_requests, lines)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS ended = ROW_COUNT;
    DELETE FROM audit_hold_subjects s WHERE s.names && who;
    RETURN ended;
END
$$;
CREATE FUNCTION audit_forget_subjects(before timestamptz) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    WITH forgotten AS (
        DELETE FROM audit_hold_subjects s USING audit_holds h
        WHERE h.hold_id = s.id AND h.change = 'released' AND h.at < before RETURNING s.id
    )
    SELECT count(*) FROM forgotten
$$;
CREATE FUNCTION audit_refuse_held_subject() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF OLD.id IN (SELECT hold_id FROM audit_active_holds(false)) THEN
        PERFORM audit_say_held('the name of a reader');
    END IF;
    IF EXISTS (SELECT FROM audit_erasure_requests r WHERE r.request_id = OLD.id)
       AND NOT EXISTS (SELECT FROM audit_erasure_requests r WHERE r.request_id = OLD.id AND r.change = 'done') THEN
        RAISE EXCEPTION 'an erasure waits for this name' USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN OLD;
END
$$;
CREATE TRIGGER audit_hold_subjects_held BEFORE DELETE ON audit_hold_subjects
    FOR EACH ROW EXECUTE FUNCTION audit_refuse_held_subject();

-- How many records that are not erased this hold covers, in the tables and, of months that have none, in the archive.
CREATE FUNCTION audit_count_held(which uuid) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    source regclass;
    h record;
    counted bigint;
    total bigint := 0;
BEGIN
    SELECT * INTO h FROM audit_active_holds() a WHERE a.hold_id = which;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    FOR source IN SELECT * FROM audit_tables() LOOP
        EXECUTE format('SELECT count(*) FROM %s l WHERE erased_at IS NULL AND audit_covers(
                            $1, $2, $3, $4, $5, $6, $7, l.query_id, l.end_user, NULL, l.client_id, l.timestamp, NULL)', source)
        INTO counted USING h.names, h.subjects, h.turns, h.query_id, h.client_id, h.since, h.until;
        total := total + counted;
    END LOOP;
    SELECT count(*) INTO counted FROM audit_row_keys k
    WHERE k.month NOT IN (SELECT m.month FROM audit_months m WHERE m.month IS NOT NULL)
      AND audit_covers(h.names, h.subjects, h.turns, h.query_id, h.client_id, h.since, h.until,
                       k.query_id, NULL, k.subject, k.client_id, k.timestamp, k.month);
    SELECT total + counted + count(*) INTO total FROM audit_open o
    WHERE audit_covers(h.names, h.subjects, h.turns, h.query_id, h.client_id, h.since, h.until,
                       (o.trail ->> 'query_id')::uuid, o.trail ->> 'end_user', NULL, o.trail ->> 'client_id', o.opened_at, NULL);
    RETURN total;
END
$$;

-- How many records before this moment are held, by whichever hold: those that retention passes over.
CREATE FUNCTION audit_count_held_before(moment timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    source regclass;
    counted bigint;
    total bigint := 0;
BEGIN
    IF NOT EXISTS (SELECT FROM audit_active_holds(false)) THEN
        RETURN 0;
    END IF;
    FOR source IN SELECT * FROM audit_tables() LOOP
        EXECUTE format('SELECT count(*) FROM %s l WHERE erased_at IS NULL AND l.timestamp < $1
                        AND audit_is_held(l.query_id, l.end_user, NULL, l.client_id, l.timestamp, NULL)', source)
        INTO counted USING moment;
        total := total + counted;
    END LOOP;
    SELECT total + count(*) INTO total FROM audit_row_keys k
    WHERE k.month < date_trunc('month', moment AT TIME ZONE 'UTC')::date
      AND k.month NOT IN (SELECT m.month FROM audit_months m WHERE m.month IS NOT NULL)
      AND audit_is_held(k.query_id, NULL, k.subject, k.client_id, k.timestamp, k.month);
    RETURN total;
END
$$;

-- The holds in force that forbid the erasure of these readers and queries, each with how many of their records it covers. One
-- that names a reader forbids it even without a record: its own names would be left.
CREATE FUNCTION audit_holds_against(who text[], queries uuid[]) RETURNS TABLE (hold_id uuid, records bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    source regclass;
    h record;
    counted bigint;
BEGIN
    FOR h IN SELECT * FROM audit_active_holds() LOOP
        hold_id := h.hold_id;
        SELECT count(*) INTO records FROM audit_open o
        WHERE (o.trail ->> 'end_user' = ANY (who) OR (o.trail ->> 'query_id')::uuid = ANY (queries))
          AND audit_covers(h.names, h.subjects, h.turns, h.query_id, h.client_id, h.since, h.until,
                           (o.trail ->> 'query_id')::uuid, o.trail ->> 'end_user', NULL, o.trail ->> 'client_id', o.opened_at, NULL);
        FOR source IN SELECT * FROM audit_tables() LOOP
            EXECUTE format('SELECT count(*) FROM %s l WHERE erased_at IS NULL AND (end_user = ANY ($8) OR query_id = ANY ($9))
                AND audit_covers($1, $2, $3, $4, $5, $6, $7, l.query_id, l.end_user, NULL, l.client_id, l.timestamp, NULL)', source)
            INTO counted USING h.names, h.subjects, h.turns, h.query_id, h.client_id, h.since, h.until, who, queries;
            records := records + counted;
        END LOOP;
        SELECT records + count(*) INTO records FROM audit_row_keys k
        WHERE (k.subject = ANY (SELECT sha256(pepper || convert_to(name, 'UTF8')) FROM audit_pepper, unnest(who) AS name)
               OR k.query_id = ANY (queries))
          AND k.month NOT IN (SELECT m.month FROM audit_months m WHERE m.month IS NOT NULL)
          AND audit_covers(h.names, h.subjects, h.turns, h.query_id, h.client_id, h.since, h.until,
                           k.query_id, NULL, k.subject, k.client_id, k.timestamp, k.month);
        IF records > 0 OR h.names && who OR h.query_id = ANY (queries) THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;

-- Whether an erasure waits that no hold forbids any more. For the engine, whose login need not be allowed to erase.
CREATE FUNCTION audit_is_erasure_due() RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM audit_erasure_requests r LEFT JOIN audit_hold_subjects s ON s.id = r.request_id
        WHERE r.change = 'asked'
          AND NOT EXISTS (SELECT FROM audit_erasure_requests d WHERE d.request_id = r.request_id AND d.change = 'done')
          AND NOT EXISTS (
            SELECT FROM audit_holds_against(
                coalesce(s.names, '{}'), array_remove(ARRAY[r.query_id], NULL) || ARRAY(SELECT audit_turns(s.names)))))
$$;

-- Whether a hold covers a record of an archived month. Its keys say so; if a record has neither a key nor a line of its erasure,
-- any hold that may reach into the month counts.
CREATE FUNCTION audit_is_month_held(of_month date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM audit_lock('erasure');
    RETURN EXISTS (SELECT FROM audit_active_holds(false)) AND (
        EXISTS (
            SELECT FROM audit_active_holds() h JOIN audit_row_keys k ON k.month = of_month
            WHERE audit_covers(h.names, h.subjects, h.turns, h.query_id, h.client_id, h.since, h.until,
                               k.query_id, NULL, k.subject, k.client_id, k.timestamp, k.month))
        OR EXISTS (
            SELECT FROM audit_active_holds(false) h
            WHERE audit_covers(NULL, NULL, NULL, NULL, NULL, h.since, h.until, NULL, NULL, NULL, NULL, NULL, of_month))
        AND EXISTS (
            SELECT FROM audit_leaves l WHERE l.month = of_month
              AND NOT EXISTS (SELECT FROM audit_row_keys k WHERE k.log_id = l.log_id)
              AND NOT EXISTS (SELECT FROM audit_erasures e WHERE e.log_id = l.log_id)));
END
$$;

DO $$
DECLARE
    known regprocedure;
BEGIN
    FOREACH known IN ARRAY ARRAY[
        'audit_active_holds(boolean)', 'audit_change_hold(json, text[], bytea)', 'audit_ask_erasure(json, text[], bytea)',
        'audit_end_requests(json, text[])', 'audit_forget_subjects(timestamptz)', 'audit_count_held(uuid)',
        'audit_count_held_before(timestamptz)', 'audit_holds_against(text[], uuid[])', 'audit_is_month_held(date)',
        'audit_share_holds()']::regprocedure[]
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', known);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO affidavit_archiver', known);
    END LOOP;
END
$$;
REVOKE EXECUTE ON FUNCTION audit_covers, audit_is_held, audit_is_turn_held, audit_is_open_held, audit_say_held,
    audit_is_session_held, audit_held_sessions, audit_is_erasure_due FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_is_session_held, audit_held_sessions, audit_is_erasure_due TO affidavit_engine;

-- As in 0013, and a month under a hold stays, and what says which records are held.
RESET ROLE;
CREATE OR REPLACE FUNCTION audit_guard.refuse_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    guarded record;
BEGIN
    IF to_regclass('public.audit_months') IS NULL OR to_regclass('public.audit_archives') IS NULL THEN
        RAISE EXCEPTION 'what says which months are archived stays' USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF to_regclass('public.audit_holds') IS NULL OR to_regclass('public.audit_hold_subjects') IS NULL
       OR to_regclass('public.audit_row_keys') IS NULL THEN
        RAISE EXCEPTION 'what says which records are held stays' USING ERRCODE = 'insufficient_privilege';
    END IF;
    FOR guarded IN
        SELECT d.object_identity, d.objsubid, m.month
        FROM pg_event_trigger_dropped_objects() d JOIN public.audit_months m ON m.relation = d.objid
        WHERE d.classid = 'pg_class'::regclass
    LOOP
        IF guarded.objsubid <> 0 OR guarded.month IS NULL OR NOT EXISTS (
            SELECT FROM public.audit_archives a WHERE a.month = guarded.month AND a.state = 'verified')
        THEN
            RAISE EXCEPTION '% holds records of the log that no verified archive holds, and stays',
                guarded.object_identity USING ERRCODE = 'insufficient_privilege';
        END IF;
        IF public.audit_is_month_held(guarded.month) THEN
            RAISE EXCEPTION '% has records under a hold, and stays', guarded.object_identity USING ERRCODE = 'AF002';
        END IF;
    END LOOP;
END
$$;
