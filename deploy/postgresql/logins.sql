-- The logins of an installation, each with the roles that it needs and no others. Run it with psql after `affidavit migrate`, and again
-- when a password has changed. The passwords are in files of these names in $FOLDER, and may have any characters.
\set ON_ERROR_STOP on
\set QUIET on
\set site `cat "$FOLDER/site"`
\set sealer `cat "$FOLDER/site_sealer"`
\set archiver `cat "$FOLDER/site_archiver"`
\set auditor `cat "$FOLDER/site_auditor"`
BEGIN;
SELECT format('CREATE ROLE %I LOGIN', login)
FROM unnest(ARRAY['site', 'site_sealer', 'site_archiver', 'site_auditor']) AS login
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = login) \gexec
ALTER ROLE site PASSWORD :'site';
ALTER ROLE site_sealer PASSWORD :'sealer';
ALTER ROLE site_archiver PASSWORD :'archiver';
ALTER ROLE site_auditor PASSWORD :'auditor';
GRANT affidavit_engine, affidavit_auditor TO site;
GRANT affidavit_sealer TO site_sealer;
GRANT affidavit_archiver, affidavit_engine TO site_archiver;
GRANT affidavit_auditor TO site_auditor;
COMMIT;
