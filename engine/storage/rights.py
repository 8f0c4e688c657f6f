"""What a login needs to migrate a database, and the statements with which an administrator gives it."""

from typing import NamedTuple

import psycopg
from psycopg import sql

from engine.errors import ConfigurationError

ROLES = {
    "affidavit_owner": "NOLOGIN",
    "affidavit_engine": "LOGIN",
    "affidavit_sealer": "LOGIN",
    "affidavit_archiver": "LOGIN NOINHERIT",
    "affidavit_auditor": "LOGIN CONNECTION LIMIT 20",
}
ADMIN_OPTION_SINCE = 160_000  # before PostgreSQL 16, CREATEROLE was enough to grant any of them

_LOGIN = """
SELECT current_user::text, current_database()::text, rolsuper, rolcreaterole,
       rolcreaterole AND current_setting('server_version_num')::int < %s,
       has_database_privilege(current_database(), 'CREATE')
       AND has_schema_privilege('public', 'CREATE WITH GRANT OPTION') AND has_schema_privilege('public', 'USAGE WITH GRANT OPTION')
FROM pg_roles WHERE rolname = current_user
"""
_OWNER = """
SELECT current_user::text, o.rolname::text, pg_has_role(relowner, 'USAGE'), o.rolsuper
FROM pg_class c JOIN pg_roles o ON o.oid = relowner
WHERE relname = 'schema_migrations' AND relnamespace = 'public'::regnamespace
"""
_ROLES = """
SELECT rolname::text, pg_has_role(rolname, 'MEMBER WITH ADMIN OPTION'), rolname = 'affidavit_archiver' AND rolinherit
FROM pg_roles WHERE rolname = ANY(%s)
"""


class MigratingLogin(NamedTuple):
    name: str
    database: str
    is_superuser: bool
    has_createrole: bool
    may_grant_any: bool
    is_owner: bool


def check_rights(connection: psycopg.Connection) -> None:
    """`ConfigurationError` with what is missing and what an administrator must run, if the database cannot be migrated."""
    found = connection.execute(_OWNER).fetchone()
    if found is None:
        _check_new(connection)
        return
    login, owner, is_member, is_superuser = found
    if not is_member:
        granted, to = (sql.Identifier(name).as_string() for name in (owner, login))
        grant = "" if is_superuser else f", or let an administrator run:\n\n  GRANT {granted} TO {to};"
        raise ConfigurationError(
            f"The login {login} cannot migrate this database, because {owner} did so before and owns its history. Nothing was"
            f" changed. Migrate as {owner}{grant}"
        )


def _check_new(connection: psycopg.Connection) -> None:
    ((*of_login,),) = connection.execute(_LOGIN, (ADMIN_OPTION_SINCE,)).fetchall()
    login = MigratingLogin(*of_login)
    known = connection.execute(_ROLES, (list(ROLES),)).fetchall()
    absent = [role for role in ROLES if role not in {name for name, *_ in known}]
    foreign = [name for name, is_ours, _ in known if not (is_ours or login.may_grant_any)]
    inherits = [
        name for name, is_ours, inherits in known if inherits and not (is_ours and login.has_createrole)
    ]
    lacks = list(_lacks(login, absent, foreign))
    if login.is_superuser or not (lacks or inherits):
        return
    statements = _statements(login, absent, foreign, inherits)
    raise ConfigurationError(
        f"The login {login.name} cannot migrate this database. It lacks {'; and '.join(lacks) or 'a right'}. Nothing was changed."
        f" Let an administrator run this once in the database {login.database}, then run `affidavit migrate` again:\n\n"
        + "\n".join(f"  {statement};" for statement in statements)
    )


def _lacks(login: MigratingLogin, absent: list[str], foreign: list[str]) -> list[str]:
    lacks = []
    if absent and not login.has_createrole:
        lacks.append(f"CREATEROLE, because {', '.join(absent)} do not exist on this server")
    if foreign:
        lacks.append(f"the ADMIN OPTION on {', '.join(foreign)}, which somebody else made")
    if not login.is_owner:
        lacks.append(
            f"the ownership of the database {login.database}, for schemas and for the rights on public"
        )
    return lacks


def _statements(
    login: MigratingLogin, absent: list[str], foreign: list[str], inherits: list[str]
) -> list[str]:
    to, database = (sql.Identifier(name).as_string() for name in (login.name, login.database))
    made = [] if login.has_createrole else absent
    granted = [role for role in ROLES if role in made or role in foreign]
    listed = [f"CREATE ROLE {role} {ROLES[role]}" for role in made]
    listed += [f"ALTER ROLE {role} NOINHERIT" for role in inherits]
    if granted:
        listed.append(f"GRANT {', '.join(granted)} TO {to} WITH ADMIN OPTION")
    if not login.is_owner:
        listed.append(f"ALTER DATABASE {database} OWNER TO {to}")
    return listed
