"""SQL allowlist and dialect translation for queries over archived months: PostgreSQL's meaning, run by DuckDB. Pure.

DuckDB's SQL is close to PostgreSQL's, but some expressions mean something else. A query must give the same answer wherever
a month is stored, and must read nothing but the log. So each query is parsed into DuckDB's syntax tree; only known nodes
are allowed, and those that DuckDB understands differently are rewritten or refused.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from audit.errors import QueryError

Tree = dict[str, Any]

SCHEMA = "public"

# An allowlist: a node of any other type is refused, also those that later versions of DuckDB add.
_ALLOWED_NODES = frozenset(
    {
        "SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE",
        "EMPTY", "BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST",
        "ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER",
        "ORDER_DEFAULT", "ASCENDING", "DESCENDING",
    }
)  # fmt: skip
# All other table functions can read files and settings.
_TABLE_FUNCTIONS = frozenset({"unnest", "generate_series", "json_each"})
_FUNCTIONS_REFUSED = frozenset({"current_setting", "getvariable", "write_log"})  # DuckDB's own state

_LIKE = {"~~": "like_escape", "!~~": "not_like_escape", "~~*": "ilike_escape", "!~~*": "not_ilike_escape"}
# DuckDB's names of `~`, with the regex options that PostgreSQL implies: a dot matches a newline too.
_MATCHES = {"regexp_full_match": "s", "~*": "si", "!~*": "si"}
# Pattern syntax that means something else in DuckDB, or is limited to ASCII.
_UNSUPPORTED_PATTERN = re.compile(r"\\(?![dnrt])[a-zA-Z]|\[[:.=][^]]*[:.=]\]|^\*\*\*|^\(\?[a-z]")
# The formats for which our macro to_char writes the same as PostgreSQL.
_SUPPORTED_FORMAT = re.compile(r"(?:(?!DDD|SSSS)(?:YYYY|MM|DD|HH24|MI|SS|US)|[^A-Za-z0-9\"%\\])*")
# PostgreSQL's functions of these names do something else.
_DIFFERENT_FUNCTIONS = frozenset({"regexp_matches", "regexp_replace", "regexp_extract", "format"})
_SUBSTRING = frozenset({"substr", "substring"})
_JSON = frozenset({"json", "jsonb"})
# Column names that PostgreSQL derives; all others equal the function's name.
_NAMES = {
    "count_star": "count", "trim": "btrim", "quantile_disc": "percentile_disc", "quantile_cont": "percentile_cont",
}  # fmt: skip
_TYPE_NAMES = {
    "VARCHAR": "text", "INTEGER": "int4", "BIGINT": "int8", "DOUBLE": "numeric", "BOOLEAN": "bool",
    "TIMESTAMP": "timestamp", "TIMESTAMP WITH TIME ZONE": "timestamptz",
}  # fmt: skip

# Literals and comments, which must not be rewritten, and the patterns between them.
_LITERAL = r"\bE'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|--[^\n]*|/\*.*?\*/"
_NO_COLUMNS = re.compile(rf"(?P<literal>{_LITERAL})|\bSELECT\s+(?=FROM\b)", re.DOTALL | re.IGNORECASE)
_BLANK = r"(?:\s|--[^\n]*|/\*.*?\*/)*"
_SCHEMA = re.compile(
    rf"(?:\bpublic|(?-i:\"public\")){_BLANK}\.{_BLANK}(?=\"?audit_)|(?P<literal>{_LITERAL})",
    re.DOTALL | re.IGNORECASE,
)
_BYPASS = re.compile(  # a partition, or a name in Unicode escapes: both would bypass the period
    rf"(?P<bypass>\"audit_logs_\d+_\d+\"|\baudit_logs_\d+_\d+\b|\bU&(?=\"))|(?P<literal>{_LITERAL})",
    re.DOTALL | re.IGNORECASE,
)
_ARROW = re.compile(rf"(?P<literal>{_LITERAL})|(?P<arrow>->>?)", re.DOTALL)
_ARROWS = {"@->": "->", "@->>": "->>"}  # DuckDB's own arrow binds too weakly
_SIMILAR = re.compile(rf"(?P<literal>{_LITERAL})|\bSIMILAR\s+TO\b", re.DOTALL | re.IGNORECASE)
_RECORDSET = re.compile(
    rf"(?P<literal>{_LITERAL})|\bjsonb?_to_recordset\((?P<value>[^()]+)\)\s*(?:AS\s+)?(?P<alias>\w+)\s*\((?P<columns>[^()]+)\)",
    re.DOTALL | re.IGNORECASE,
)


def strip_schema(sql: str) -> str:
    """Remove the schema from names of the log and its views, so that temporary views can replace them."""
    if any(found["bypass"] for found in _BYPASS.finditer(sql)):
        raise QueryError("With --from or --to, query audit_logs and not the table of one month")
    return _SCHEMA.sub(lambda found: found["literal"] or "", sql)


def normalize(sql: str) -> str:
    """Rewrite syntax that DuckDB's parser does not accept."""
    if any(not found["literal"] for found in _SIMILAR.finditer(sql)):
        raise QueryError("SIMILAR TO is not supported over archived months. Use ~ or LIKE")
    bound = _ARROW.sub(lambda found: found["literal"] or f"@{found['arrow']}", sql)
    whole = _NO_COLUMNS.sub(lambda found: found["literal"] or "SELECT 1 ", bound)
    return _RECORDSET.sub(
        lambda found: found["literal"] or _recordset(*found.group("value", "alias", "columns")), whole
    )


def translate(serialised: str, tables: Mapping[str, Mapping[str, str]], reserved: Collection[str]) -> str:
    """Check and translate the tree of one SELECT: it reads these tables only, with PostgreSQL's meaning.

    `tables` has the type of each column.
    """
    tree = check(serialised, tables, reserved)
    json_names = _json_names(tree, [tables[name] for name in tables_in(serialised) if name in tables])
    for node in _nodes(tree):
        _refuse(node, json_names)
    for node in _nodes(tree):
        _rewrite(node)
    for node in _nodes(tree):
        if node.get("type") == "SELECT_NODE":
            for column in node["select_list"]:
                column["alias"] = column.get("alias") or _name(column)
    return json.dumps(tree)


def check(serialised: str, tables: Collection[str], reserved: Collection[str]) -> Tree:
    """The parsed tree, if it reads nothing but these tables."""
    tree: Tree = json.loads(serialised)
    if tree["error"] and tree["error_type"] == "not implemented":
        raise QueryError("Only a SELECT can run over archived months")
    if tree["error"]:
        at = tree.get("position")
        raise QueryError(tree["error_message"] + (f" (at character {int(at) + 1})" if at else ""))
    if len(tree["statements"]) != 1:
        raise QueryError("This is more than one statement. Run one at a time")
    named = {name.lower() for node in _nodes(tree) for name in _cte_names(node)}
    if taken := named & set(reserved) - set(tables):
        raise QueryError(f"The name {min(taken)} is reserved. Choose another name")
    for node in _nodes(tree):
        _check(node, {*tables, *named})
    return tree


def tables_in(serialised: str) -> set[str]:
    parts = _nodes(json.loads(serialised))
    return {node["table_name"].lower() for node in parts if node.get("type") == "BASE_TABLE"}


def _check(node: Tree, known: Collection[str]) -> None:
    kind = node.get("type")
    is_node = isinstance(kind, str) and "class" not in node
    if is_node and kind not in _ALLOWED_NODES and not str(kind).endswith("_TYPE_INFO"):
        raise QueryError(f"Only a plain SELECT can run over archived months, without {kind}")
    if kind == "BASE_TABLE":
        _check_table(node, known)
    if kind == "TABLE_FUNCTION":
        name = node["function"]["function_name"]
        if name.lower() not in _TABLE_FUNCTIONS:
            raise QueryError(f"{name} cannot be used as a table over archived months")
    if node.get("class") == "FUNCTION" and node["function_name"].lower() in _FUNCTIONS_REFUSED:
        raise QueryError(
            f"{node['function_name']} is not allowed: it reads DuckDB's settings and not the log"
        )


def _check_table(node: Tree, known: Collection[str]) -> None:
    place = [node.get("catalog_name"), node.get("schema_name"), node["table_name"]]
    name = ".".join(filter(None, place))
    is_ours = not node.get("catalog_name") and (node.get("schema_name") or SCHEMA).lower() == SCHEMA
    if not is_ours or node["table_name"].lower() not in known:
        raise QueryError(f"There is no table {name} for auditors")


def _cte_names(node: Tree) -> Iterator[str]:
    if node.get("cte_name"):
        yield node["cte_name"]
    for entry in (node.get("cte_map") or {}).get("map", ()):
        yield entry["key"]


def _refuse(node: Tree, json_names: Collection[str]) -> None:
    """Refuse nodes that DuckDB evaluates differently and that cannot be translated."""
    if node.get("class") == "FUNCTION":
        second = node["children"][1] if len(node["children"]) > 1 else None
        _refuse_function(str(node["function_name"]).lower(), _literal(second))
    if any(_is_json(value, json_names) for value in _operands(node)):
        raise QueryError(
            "Over archived months a whole JSON value cannot be compared or joined:"
            " use a part of it, as in filters ->> 'module' = '3', or its text, as in filters::text"
        )


def _refuse_function(name: str, second: str | None) -> None:
    """`second` is the second argument, if it is a literal."""
    if name in _DIFFERENT_FUNCTIONS:
        raise QueryError(f"{name} means something else over archived months, so it is not allowed")
    if name in _MATCHES and (second is None or _UNSUPPORTED_PATTERN.search(second)):
        raise QueryError(
            r"Over archived months a pattern must be a literal without classes like \w or [:alpha:]"
        )
    if name == "to_char" and (second is None or not _SUPPORTED_FORMAT.fullmatch(second)):
        raise QueryError(
            "Over archived months to_char supports only YYYY, MM, DD, HH24, MI, SS, US and punctuation"
        )
    if name in _SUBSTRING and (second or "").startswith("-"):
        raise QueryError(f"Over archived months {name} cannot start before the first character")
    if name in _ARROWS and (second or "").startswith(("$", "/")):
        raise QueryError("Over archived months the key after an arrow must not begin with $ or /")


def _operands(node: Tree) -> list[Tree]:
    """The operands of an operator that would treat JSON as text in DuckDB. Arrows handle JSON themselves."""
    kind, name = node.get("class"), node.get("function_name")
    if kind == "COMPARISON":
        return [node["left"], node["right"]]
    if kind == "BETWEEN":
        return [node["input"]]
    if kind == "OPERATOR" and node["type"] in {"COMPARE_IN", "COMPARE_NOT_IN"}:
        return list(node["children"])
    if kind == "SUBQUERY":
        return [node["child"]] if node.get("child") else []
    if kind == "FUNCTION" and name not in _ARROWS and (node["is_operator"] or name in {*_MATCHES, "nullif"}):
        return list(node["children"])
    return []


def _json_names(tree: Tree, tables: Iterable[Mapping[str, str]]) -> set[str]:
    """The names of JSON columns: those of the tables, and the query's aliases for them."""
    names = {name for columns in tables for name, kind in columns.items() if kind in _JSON}
    called = [node for node in _nodes(tree) if node.get("class") and node.get("alias")]
    while new := {node["alias"].lower() for node in called if _is_json(node, names)} - names:
        names |= new
    return names


def _is_json(value: Tree, names: Collection[str]) -> bool:
    kind = value["class"]
    if kind == "COLUMN_REF":
        return str(value["column_names"][-1]).lower() in names
    if kind == "CAST":
        info = value["cast_type"]["type_info"] or {}
        return str(info.get("name", value["cast_type"]["id"])).lower() in _JSON
    if kind == "OPERATOR" and value["type"] == "OPERATOR_COALESCE":
        return any(_is_json(item, names) for item in value["children"])
    if kind == "SUBQUERY" and value["subquery"]["node"]["type"] == "SELECT_NODE":
        return _is_json(value["subquery"]["node"]["select_list"][0], names)
    return kind == "FUNCTION" and bool(value["function_name"] == "@->")


def _literal(value: Tree | None) -> str | None:
    """The value of a constant, also within casts: PostgreSQL's view definitions write constants with their type."""
    while value and value["class"] == "CAST":
        value = value["child"]
    return str(value["value"].get("value", "")) if value and value["class"] == "CONSTANT" else None


def _rewrite(node: Tree) -> None:
    name = node.get("function_name") if node.get("class") == "FUNCTION" else None
    if name in _MATCHES:
        match = node | {"function_name": "regexp_matches", "is_operator": False}
        match["children"] = [*node["children"][:2], _constant(_MATCHES[name])]
        match["alias"] = node["alias"] or "?column?"
        if name.startswith("!"):
            negated = {"class": "OPERATOR", "type": "OPERATOR_NOT", "query_location": node["query_location"]}
            match = negated | {"alias": match["alias"], "children": [match | {"alias": ""}]}
        node.clear()
        node |= match
    elif name in _LIKE and _has_backslash(node["children"][1]):
        node |= {"function_name": _LIKE[name], "is_operator": False, "alias": node["alias"] or "?column?"}
        node["children"].append(_constant("\\"))
    elif name in _ARROWS:
        node["function_name"] = _ARROWS[name]
    elif node.get("type") == "BASE_TABLE":
        node["schema_name"] = ""
    elif node.get("id") == "DECIMAL":
        info = node["type_info"]
        if info is None or (info.get("width"), info.get("scale")) == (18, 3):
            # A plain numeric would have only three decimals in DuckDB.
            node |= {"id": "DOUBLE", "type_info": None}


def _has_backslash(pattern: Tree) -> bool:
    """A backslash escapes the next character in PostgreSQL. A computed pattern may contain one."""
    return pattern["class"] != "CONSTANT" or "\\" in str(pattern["value"].get("value"))


def _constant(text: str) -> Tree:
    value = {"type": {"id": "VARCHAR", "type_info": None}, "is_null": False, "value": text}
    return {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "query_location": 0, "value": value}


def _name(column: Tree) -> str:
    """PostgreSQL's name of a column without an alias; empty if DuckDB derives the same name."""
    kind = column["class"]
    if kind in {"COLUMN_REF", "STAR"}:
        return ""
    if kind in _NAMING and not column.get("is_operator"):
        return _NAMING[kind](column)
    return {"CASE_EXPR": "case", "OPERATOR_COALESCE": "coalesce"}.get(column["type"], "?column?")


def _function_name(column: Tree) -> str:
    name = str(column["function_name"]).lower()
    if name == "unnest":
        return ""  # it may become several columns
    if name == "date_part" and column.get("schema"):
        return "extract"
    return _NAMES.get(name, name)


def _cast_name(column: Tree) -> str:
    inner = column["child"]
    if inner["class"] == "COLUMN_REF":
        return str(inner["column_names"][-1])
    name = _name(inner)
    kind = column["cast_type"]["id"]
    return _TYPE_NAMES.get(kind, str(kind).lower()) if name in {"", "?column?"} else name


def _subquery_name(column: Tree) -> str:
    node = column["subquery"]["node"]
    if column["subquery_type"] != "SCALAR" or node["type"] != "SELECT_NODE":
        return "exists" if column["subquery_type"] == "EXISTS" else "?column?"
    first = node["select_list"][0]
    own = first["column_names"][-1] if first["class"] == "COLUMN_REF" else _name(first)
    return str(first.get("alias") or own)


_NAMING = {
    "FUNCTION": _function_name,
    "WINDOW": _function_name,
    "CAST": _cast_name,
    "SUBQUERY": _subquery_name,
}


def _nodes(tree: Any) -> Iterator[Tree]:
    """Every node of a tree, outer nodes first."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _recordset(value: str, alias: str, columns: str) -> str:
    """`jsonb_to_recordset(value) AS alias(columns)` in DuckDB's syntax."""
    cells = []
    for column in columns.split(","):
        name, kind = column.strip().split(None, 1)
        path = name.strip('"').replace("'", "''")
        cells.append(f"CAST(item @->> '{path}' AS {kind}) AS {name}")
    items = f"(SELECT unnest(CAST({value} AS JSON[])) AS item)"
    return f"(SELECT {', '.join(cells)} FROM {items}) AS {alias}"  # noqa: S608  parsed and check like the rest of the query
