-- Functions of PostgreSQL with which everybody who can log in writes to the disk, whatever rights they have: messages into the
-- write-ahead log, and large objects. Nothing here uses them. PUBLIC loses them where a superuser migrates.
SET LOCAL ROLE affidavit_owner;

-- Those that PUBLIC may still execute. `affidavit doctor` asks, too: a new version of PostgreSQL may bring one back.
CREATE FUNCTION audit_disk_writers() RETURNS SETOF text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'pg_catalog.' || oid::regprocedure FROM pg_proc
    WHERE pronamespace = 'pg_catalog'::regnamespace AND has_function_privilege('public', oid, 'EXECUTE') AND proname IN (
        'pg_logical_emit_message', 'lo_creat', 'lo_create', 'lo_from_bytea', 'lo_import', 'lo_export', 'lo_put', 'lowrite',
        'lo_truncate', 'lo_truncate64', 'lo_unlink')
    ORDER BY 1
$$;
REVOKE EXECUTE ON FUNCTION audit_disk_writers FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_disk_writers TO affidavit_auditor;

RESET ROLE;
DO $$
DECLARE
    writers text := (SELECT string_agg(name, ', ') FROM audit_disk_writers() AS name);
BEGIN
    IF writers IS NULL THEN
        RETURN;
    END IF;
    IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || writers || ' FROM PUBLIC';
    ELSE
        RAISE WARNING 'Whoever can log in can write to the disk: let a superuser run REVOKE EXECUTE ON FUNCTION % FROM PUBLIC', writers;
    END IF;
END
$$;

-- The server's own log is a file too, and a session can write lines into it (RAISE LOG, debug_print_plan). As in 0022 this is for
-- logins as affidavit_auditor itself; this one a session cannot lift.
DO $$
BEGIN
    EXECUTE format('ALTER ROLE affidavit_auditor IN DATABASE %I SET log_min_messages = ''fatal''', current_database());
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE WARNING 'Logins as affidavit_auditor can write lines into the server''s log: let a superuser set log_min_messages = ''fatal'' with ALTER ROLE';
END
$$;
