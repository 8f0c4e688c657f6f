"""The definitions that a reader's query goes through, as PostgreSQL has them: views, tables, columns, functions, triggers.

Each has one text that is the same on PostgreSQL 15 to 18. `make schema` writes the digests of all texts into
sql/definitions.json; `comparison.py` compares a database with them. They are shipped and not made on the server, because
an auditor may make nothing there, and because a server that was tampered with is no witness of what it should be.
"""

# ruff: noqa: S608  only texts of our own

from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

import psycopg

# Names with their schema, times in UTC: the texts must not depend on a setting.
SESSION = "SET search_path = pg_catalog; SET timezone = 'UTC'; SET datestyle = 'ISO'; SET row_security = off; SET jit = off"

_SCHEMAS = "('public'::regnamespace, to_regnamespace('audit_guard'))"
_OWNER = r"CASE WHEN pg_get_userbyid({0}) LIKE 'affidavit\_%' THEN pg_get_userbyid({0}) ELSE 'whoever migrates' END"
_WRITING = """
    SELECT string_agg(concat_ws(' ', CASE grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(grantee)::text END,
                                privilege_type, CASE WHEN is_grantable THEN 'and may grant it' END), ', '
                      ORDER BY CASE grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(grantee)::text END, privilege_type)
    FROM aclexplode({0}) WHERE grantee <> {1} AND privilege_type NOT IN ('SELECT', 'USAGE')
"""

# Kind, the table or view that it belongs to, name, text. Months of the log are looked at one by one: see outsiders.py.
# PostgreSQL 15 writes the name of a query's only table before its columns, later ones do not; and a list of varchar is written
# with its casts elsewhere once a dump was restored: these are left out.
_LISTING = rf"""
WITH relations AS MATERIALIZED (
    SELECT c.*, format('%s.%I', relnamespace::regnamespace, relname) AS name FROM pg_class c
    WHERE relnamespace IN {_SCHEMAS} AND relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT relispartition
      AND NOT EXISTS (SELECT FROM public.audit_months m WHERE m.relation = c.oid AND m.month IS NOT NULL)
)
SELECT 'table' AS kind, name AS relation, name, concat_ws(' ', relkind, relpersistence, amname, {_OWNER.format("relowner")},
    CASE WHEN relrowsecurity OR relforcerowsecurity THEN 'with row-level security' END,
    CASE WHEN relkind = 'v' THEN reloptions::text END, pg_get_partkeydef(r.oid)) AS text
FROM relations r LEFT JOIN pg_am a ON a.oid = relam
UNION ALL
SELECT 'view', name, name, regexp_replace(pg_get_viewdef(oid), '\m(audit_logs|spans)\.', '', 'g')
FROM relations WHERE relkind = 'v'
UNION ALL
SELECT 'column', name, format('%s.%I', name, attname), concat_ws(' ', format_type(atttypid, atttypmod),
    CASE WHEN attnotnull THEN 'not null' END, nullif(attidentity, ''), nullif(attgenerated, ''), pg_get_expr(adbin, adrelid),
    CASE WHEN attcollation NOT IN (0, 100) THEN attcollation::regcollation END)
FROM relations r JOIN pg_attribute ON attrelid = r.oid LEFT JOIN pg_attrdef ON adrelid = r.oid AND adnum = attnum
WHERE attnum > 0 AND NOT attisdropped
UNION ALL
SELECT 'constraint', name, format('%I on %s', conname, name),
    concat_ws(' ', regexp_replace(pg_get_constraintdef(k.oid), '::(character varying|text)|\[\]|[()]', '', 'g'), CASE WHEN NOT convalidated THEN 'not validated' END)
FROM relations r JOIN pg_constraint k ON conrelid = r.oid WHERE contype IN ('p', 'u', 'c', 'f', 'x')
UNION ALL
SELECT 'trigger', name, format('%I on %s', tgname, name), concat_ws(' ', pg_get_triggerdef(t.oid), tgenabled)
FROM relations r JOIN pg_trigger t ON tgrelid = r.oid WHERE NOT tgisinternal
UNION ALL
SELECT 'rule', name, format('%I on %s', rulename, name), pg_get_ruledef(w.oid)
FROM relations r JOIN pg_rewrite w ON ev_class = r.oid WHERE rulename <> '_RETURN'
UNION ALL
SELECT 'policy', name, format('%I on %s', polname, name), concat_ws(' ', polcmd, pg_get_expr(polqual, polrelid))
FROM relations r JOIN pg_policy ON polrelid = r.oid
UNION ALL
SELECT 'rights', name, name, concat_ws('; ', ({_WRITING.format("coalesce(relacl, acldefault('r', relowner))", "relowner")}),
    (SELECT string_agg(attname || ': ' || rights, '; ' ORDER BY attname) FROM pg_attribute,
        LATERAL ({_WRITING.format("attacl", "relowner")}) AS own(rights) WHERE attrelid = r.oid AND rights IS NOT NULL))
FROM relations r WHERE relkind <> 'f'
UNION ALL
SELECT 'function', NULL, p.oid::regprocedure::text, concat_ws(' ', pg_get_functiondef(p.oid), {_OWNER.format("proowner")},
    ({_WRITING.format("coalesce(proacl, acldefault('f', proowner))", "proowner")}))
FROM pg_proc p WHERE pronamespace IN {_SCHEMAS} AND prokind IN ('f', 'p')
UNION ALL
SELECT 'migration', NULL, name, sha256 FROM public.schema_migrations
"""


class Definition(NamedTuple):
    kind: str
    relation: str | None  # to which it belongs
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def digest(self) -> str:
        return sha256(self.text.encode()).hexdigest()[:32]


def definitions(connection: psycopg.Connection) -> list[Definition]:
    """In a session with the settings of SESSION."""
    rows = connection.execute(_LISTING.encode()).fetchall()
    return sorted((Definition(*row) for row in rows), key=str)


def digests(connection: psycopg.Connection) -> Mapping[str, str]:
    return {str(found): found.digest for found in definitions(connection)}
