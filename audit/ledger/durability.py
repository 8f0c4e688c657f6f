"""Durability check: finds settings with which PostgreSQL may lose a commit that it acknowledged. Cheap enough for every minute."""

import psycopg

# The writer sets synchronous_commit for itself, but a login that weakens it shows an intention. An unlogged table is
# emptied by the first crash, whatever the settings.
_WEAKNESSES = r"""
SELECT name || ' is off: a power cut loses or corrupts records. Switch it on in postgresql.conf.' AS weakness
FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'
UNION ALL
SELECT format('synchronous_commit is %s: a power cut loses records. Set it to on.', reset_val)
FROM pg_settings WHERE name = 'synchronous_commit' AND reset_val NOT IN ('on', 'remote_apply')
UNION ALL
SELECT format('%s for %s %s: a power cut loses records. Undo it with ALTER … RESET synchronous_commit.', configured,
              CASE WHEN setrole = 0 THEN 'all roles' ELSE 'the role ' || pg_get_userbyid(setrole) END,
              CASE WHEN setdatabase = 0 THEN 'in all databases' ELSE 'in this database' END)
FROM pg_db_role_setting CROSS JOIN LATERAL unnest(setconfig) AS configured
WHERE configured ~* '^synchronous_commit=' AND configured !~* '=(on|true|yes|1|remote_apply)$'
  AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
  AND (setrole = 0 OR pg_get_userbyid(setrole) = session_user OR pg_get_userbyid(setrole) LIKE 'affidavit\_%')
UNION ALL
SELECT format('The table %s is not logged: a crash empties it. Run ALTER TABLE %s SET LOGGED.', relname, relname)
FROM pg_class
WHERE relkind IN ('r', 'p') AND relpersistence <> 'p'
  AND relnamespace = 'public'::regnamespace AND relname LIKE 'audit\_%'
ORDER BY weakness
"""


async def weaknesses(connection: psycopg.AsyncConnection) -> list[str]:
    """One message for each weakness, with what to do; empty if all is well."""
    cursor = await connection.execute(_WEAKNESSES.encode())
    return [message for (message,) in await cursor.fetchall()]
