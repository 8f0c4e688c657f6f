"""What no listing of the shipped schema can have: things beside it that change what a reader sees.

Each question gives lines of what was found, what that can do, and what to do about it. What belongs to an extension is left out.
"""

# ruff: noqa: S608  only texts of our own

from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg

_BUILT_IN = 16384  # objects with a lower number were made by initdb

_OURS = """
    SELECT c.oid FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
    AND (relname LIKE 'audit\\_%' OR relname IN (
        'api_keys', 'books', 'calibrations', 'chunks', 'documents', 'generation_chunks', 'generations', 'schema_migrations'))
"""

# A month of the log is a plain table with its own name, its own bounds and the log's columns, and nothing that acts on reads.
_MONTHS = """
SELECT format('The partition %s of the log, %s, is not a month as this program makes them', inhrelid::regclass, bound),
       'It can hold records that no month has and no seal covers, or show other rows to some readers',
       'Look at its rows and at \\d+ of it; a month is made with `affidavit audit partitions`'
FROM (
    SELECT inhrelid, pg_get_expr(relpartbound, inhrelid) AS bound, c.*, m.month
    FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid LEFT JOIN public.audit_months m ON m.relation = inhrelid
    WHERE inhparent = 'public.audit_logs'::regclass
) p
WHERE relkind <> 'r' OR relpersistence <> 'p' OR relrowsecurity OR relforcerowsecurity OR month IS NULL
   OR month >= '9999-12-01' OR relam <> (SELECT oid FROM pg_am WHERE amname = 'heap')
   OR relowner <> (SELECT relowner FROM pg_class WHERE oid = 'public.audit_logs'::regclass)
   OR inhrelid <> coalesce(to_regclass(to_char(month, '"public.audit_logs_"YYYY_MM')), 0)
   OR bound <> format('FOR VALUES FROM (%L) TO (%L)', month::timestamptz::text, (month + interval '1 month')::timestamptz::text)
   OR EXISTS (SELECT FROM pg_policy WHERE polrelid = inhrelid)
   OR EXISTS (SELECT FROM pg_rewrite WHERE ev_class = inhrelid)
   OR EXISTS (
        (SELECT attname, atttypid, atttypmod, attcollation FROM pg_attribute
         WHERE attrelid = 'public.audit_logs'::regclass AND attnum > 0 AND NOT attisdropped)
        EXCEPT
        (SELECT attname, atttypid, atttypmod, attcollation FROM pg_attribute
         WHERE attrelid = inhrelid AND attnum > 0 AND NOT attisdropped))
"""
_TRIGGERS = """
SELECT format('The partition %s of the log has not the triggers of a month', inhrelid::regclass),
       'Records can be dropped, changed or removed without a word',
       'Compare \\d+ of it with another month, and put back what differs', false
FROM pg_inherits
WHERE inhparent = 'public.audit_logs'::regclass AND (
    EXISTS (
        SELECT FROM pg_trigger WHERE tgrelid = inhrelid AND NOT (tgisinternal AND tgparentid = 0) AND NOT (
            tgenabled IN ('O', 'A') AND tgqual IS NULL AND (tgname, tgtype, tgfoid::regproc::text) IN (
                ('audit_logs_keep', 27, 'public.audit_refuse_change'), ('audit_logs_keep_all', 34, 'public.audit_refuse_change'),
                ('audit_logs_frozen', 7, 'public.audit_refuse_late'), ('audit_logs_frozen_keep', 27, 'public.audit_refuse_change'))))
    OR 2 <> (SELECT count(*) FROM pg_trigger WHERE tgrelid = inhrelid AND tgname IN ('audit_logs_keep', 'audit_logs_keep_all')))
"""
_CHILDREN = f"""
SELECT format('The table %s inherits from %s', inhrelid::regclass, inhparent::regclass),
       'Its rows are shown as rows of that table, and nobody of the house wrote them there',
       'Look at its rows, then ALTER TABLE … NO INHERIT'
FROM pg_inherits WHERE inhparent <> 'public.audit_logs'::regclass AND EXISTS (
    SELECT FROM pg_class WHERE oid = inhparent AND relkind IN ('r', 'p', 'f')) AND inhparent IN (
    {_OURS} UNION SELECT inhrelid FROM pg_inherits WHERE inhparent = 'public.audit_logs'::regclass)
"""
_INDEXES = f"""
SELECT format('The index %s of %s compares in a way that PostgreSQL does not know', indexrelid::regclass, indrelid::regclass),
       'A query that uses it can miss rows that are there', 'Drop it'
FROM pg_index WHERE indrelid IN (
    {_OURS} UNION SELECT inhrelid FROM pg_inherits WHERE inhparent = 'public.audit_logs'::regclass)
  AND EXISTS (SELECT FROM unnest(indclass) AS used WHERE used >= {_BUILT_IN} AND NOT EXISTS (
        SELECT FROM pg_depend WHERE classid = 'pg_opclass'::regclass AND objid = used AND deptype = 'e'))
"""
# A name without a schema is looked for in "$user" first: so psql shows an auditor this one.
_NAMESAKES = """
SELECT format('%s is in a schema with the name of a login', c.oid::regclass),
       'Whoever logs in under that name and names no schema is shown it instead of the log', 'Look at it, then drop it'
FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace JOIN pg_roles r ON r.rolname = n.nspname
WHERE nspname <> 'public' AND pg_has_role(r.oid, 'affidavit_auditor', 'MEMBER') AND relkind IN ('r', 'p', 'v', 'm', 'f')
  AND EXISTS (SELECT FROM pg_class o WHERE o.relnamespace = 'public'::regnamespace AND o.relname = c.relname
              AND o.relkind IN ('r', 'p', 'v') AND o.relname LIKE 'audit\\_%')
"""
# Of functions with one name the one is called whose types fit best, wherever it stands.
_NOT_OF_AN_EXTENSION = (
    "NOT EXISTS (SELECT FROM pg_depend WHERE classid = '{0}'::regclass AND objid = {1}.oid AND deptype = 'e')"
)
_SHADOWS = f"""
SELECT format('The function %s has the name of one of PostgreSQL''s own, and takes its types', p.oid::regprocedure),
       'A query that calls it is answered by it', 'Drop it, or give it another name or a schema of its own'
FROM pg_proc p
WHERE pronamespace IN ('public'::regnamespace, 'pg_catalog'::regnamespace) AND oid >= {_BUILT_IN}
  AND {_NOT_OF_AN_EXTENSION.format("pg_proc", "p")}
  AND NOT EXISTS (SELECT FROM unnest(proargtypes) AS taken WHERE taken >= {_BUILT_IN})
  AND EXISTS (SELECT FROM pg_proc b WHERE b.oid < {_BUILT_IN} AND b.proname = p.proname AND b.proargtypes <> p.proargtypes)
UNION ALL
SELECT format('The operator %s compares or computes with types of PostgreSQL''s own', o.oid::regoperator),
       'A condition that is written with it means something else', 'Drop it, or put it into a schema of its own'
FROM pg_operator o
WHERE oprnamespace IN ('public'::regnamespace, 'pg_catalog'::regnamespace) AND oid >= {_BUILT_IN}
  AND {_NOT_OF_AN_EXTENSION.format("pg_operator", "o")} AND oprleft < {_BUILT_IN} AND oprright < {_BUILT_IN}
UNION ALL
SELECT format('There is a cast from %s to %s that PostgreSQL does not have', castsource::regtype, casttarget::regtype),
       'It can change values before they are compared or shown', 'Drop it'
FROM pg_cast k
WHERE oid >= {_BUILT_IN} AND castsource < {_BUILT_IN} AND casttarget < {_BUILT_IN}
  AND {_NOT_OF_AN_EXTENSION.format("pg_cast", "k")}
UNION ALL
SELECT format('The function %s of PostgreSQL itself was replaced', p.oid::regprocedure),
       'No answer of this server can be trusted', 'Restore the database into a new server'
FROM pg_proc p JOIN pg_language l ON l.oid = prolang WHERE p.oid < {_BUILT_IN} AND lanname NOT IN ('internal', 'c', 'sql')
"""
# What this program sets for its own sessions is not touched by these; what an auditor opens with psql is.
_SETTINGS = r"""
SELECT format('%s is set for %s', configured, CASE setrole WHEN 0 THEN 'everybody in this database' ELSE 'the role ' || pg_get_userbyid(setrole) END),
       'Whoever names no schema can be shown other tables, or rows be hidden, outside of this program',
       'Take it back with ALTER ROLE … RESET or ALTER DATABASE … RESET', false
FROM pg_db_role_setting CROSS JOIN LATERAL unnest(setconfig) AS configured
WHERE setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
  AND (setrole = 0 OR pg_has_role(setrole, 'affidavit_auditor', 'MEMBER') OR pg_get_userbyid(setrole) LIKE 'affidavit\_%')
  AND (configured ~* '^(row_security|role|session_replication_role)='
       OR configured ~* '^search_path=' AND configured !~* '^search_path=("?\$user"?, *)?("?pg_catalog"?, *)?"?public"?$')
"""
# It runs after all that a connection asks for, so no pinned setting is safe from it.
_LOGINS = """
SELECT format('The event trigger %s acts on every login', evtname),
       'It can lead a session to other tables or to another role before its first query', 'Look at its function, then drop it'
FROM pg_event_trigger WHERE evtevent = 'login' AND evtenabled <> 'D'
"""
# Evidence stays for ever, so a month that has some is in the log or in an archive that was read back.
_HIDDEN = """
WITH RECURSIVE months AS (
    SELECT min(month) AS month FROM public.audit_leaves
    UNION ALL
    SELECT (SELECT min(l.month) FROM public.audit_leaves l WHERE l.month > m.month) FROM months m WHERE m.month IS NOT NULL
)
SELECT format('The records of %s are neither in the log nor in a verified archive', to_char(month, 'YYYY-MM')),
       'A query is answered without them', 'Run `affidavit audit status`, and `affidavit audit verify`', false
FROM months WHERE month IS NOT NULL
  AND NOT EXISTS (SELECT FROM public.audit_archives a WHERE a.month = months.month AND a.state = 'verified')
  AND NOT EXISTS (
      SELECT FROM pg_inherits WHERE inhparent = 'public.audit_logs'::regclass AND NOT inhdetachpending
        AND inhrelid = to_regclass(to_char(month, '"public.audit_logs_"YYYY_MM')))
"""
_QUESTIONS: tuple[LiteralString, ...] = (
    _MONTHS, _TRIGGERS, _CHILDREN, _INDEXES, _NAMESAKES, _SHADOWS, _LOGINS, _SETTINGS, _HIDDEN,
)  # fmt: skip


def outsiders(connection: psycopg.Connection) -> Iterator[tuple[Any, ...]]:
    """In a session with the settings of listing.SESSION."""
    for question in _QUESTIONS:
        yield from connection.execute(question.encode()).fetchall()
