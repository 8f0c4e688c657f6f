-- Who may do what. Roles belong to the whole server, so a second database finds them already there.
-- None has a password: a deployment gives one (or certificates); the embedded server maps the operating system's user.
DO $$
DECLARE
    role_name text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'affidavit_owner') THEN
        CREATE ROLE affidavit_owner NOLOGIN;
    END IF;
    FOREACH role_name IN ARRAY ARRAY['affidavit_engine', 'affidavit_sealer', 'affidavit_archiver', 'affidavit_auditor'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I LOGIN', role_name);
        END IF;
    END LOOP;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;  -- another database of this server made them meanwhile
END
$$;

GRANT affidavit_owner, affidavit_engine, affidavit_sealer, affidavit_archiver, affidavit_auditor TO CURRENT_USER;

REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO affidavit_owner;
GRANT USAGE ON SCHEMA public TO affidavit_engine, affidavit_sealer, affidavit_archiver, affidavit_auditor;
GRANT SELECT ON schema_migrations TO affidavit_engine, affidavit_auditor;
