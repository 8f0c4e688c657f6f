"""What an auditor may ask of all tiers, and what PostgreSQL means by it. Pure: it works on DuckDB's syntax tree.

The archive is asked by DuckDB, whose SQL is close to PostgreSQL's, and here and there says something else in the same
words. Whoever asks must neither notice when a month has left the database, nor reach more than the log: so a question
is read into its tree, only what is known there is let through, and what DuckDB understands otherwise is put right.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from audit.errors import QueryError

Tree = dict[str, Any]

SCHEMA = "public"

# A part of a question that is none of these is refused, whatever later versions of DuckDB may add.
_PARTS = frozenset(
    {
        "SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE",
        "EMPTY", "BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST",
        "ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER",
        "ORDER_DEFAULT", "ASCENDING", "DESCENDING",
    }
)  # fmt: skip
_TABLE_FUNCTIONS = frozenset({"unnest", "generate_series", "json_each"})  # the others read files and settings
_FUNCTIONS_REFUSED = frozenset({"current_setting", "getvariable", "write_log"})  # DuckDB's own state

_LIKE = {
    "~~": "like_escape",
    "!~~": "not_like_escape",
    "~~*": "ilike_escape",
    "!~~*": "not_ilike_escape",
}
# What `~` is called here, which would have to fit the whole text; with options: a dot is any sign, a newline too.
_MATCHES = {"regexp_full_match": "s", "~*": "si", "!~*": "si"}
# In a pattern: what means something else here, or knows no umlauts.
_FOREIGN = re.compile(r"\\(?![dnrt])[a-zA-Z]|\[[:.=][^]]*[:.=]\]|^\*\*\*|^\(\?[a-z]")
# What our to_char writes as PostgreSQL does.
_FORM = re.compile(r"(?:(?!DDD|SSSS)(?:YYYY|MM|DD|HH24|MI|SS|US)|[^A-Za-z0-9\"%\\])*")
# PostgreSQL has others of these names.
_OTHERWISE = frozenset({"regexp_matches", "regexp_replace", "regexp_extract", "format"})
_PART_OF_TEXT = frozenset({"substr", "substring"})
_JSON = frozenset({"json", "jsonb"})
_NAMES = {
    "count_star": "count",
    "trim": "btrim",
    "quantile_disc": "percentile_disc",
    "quantile_cont": "percentile_cont",
}  # of columns; the others are called as their function
_TYPE_NAMES = {
    "VARCHAR": "text", "INTEGER": "int4", "BIGINT": "int8", "DOUBLE": "numeric", "BOOLEAN": "bool",
    "TIMESTAMP": "timestamp", "TIMESTAMP WITH TIME ZONE": "timestamptz",
}  # fmt: skip

# Texts and comments, which nobody may look into, and what stands between them.
_LITERAL = r"\bE'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|--[^\n]*|/\*.*?\*/"
_NO_COLUMNS = re.compile(rf"(?P<literal>{_LITERAL})|\bSELECT\s+(?=FROM\b)", re.DOTALL | re.IGNORECASE)
_BLANK = r"(?:\s|--[^\n]*|/\*.*?\*/)*"
_SCHEMA = re.compile(
    rf"(?:\bpublic|(?-i:\"public\")){_BLANK}\.{_BLANK}(?=\"?audit_)|(?P<literal>{_LITERAL})",
    re.DOTALL | re.IGNORECASE,
)
_PAST_TIMES = re.compile(  # a month's own table, or a name that is spelled in numbers
    rf"(?P<past>\"audit_logs_\d+_\d+\"|\baudit_logs_\d+_\d+\b|\bU&(?=\"))|(?P<literal>{_LITERAL})",
    re.DOTALL | re.IGNORECASE,
)
_ARROW = re.compile(rf"(?P<literal>{_LITERAL})|(?P<arrow>->>?)", re.DOTALL)
_ARROWS = {"@->": "->", "@->>": "->>"}  # DuckDB's own arrow takes all that stands to its left
_SIMILAR = re.compile(rf"(?P<literal>{_LITERAL})|\bSIMILAR\s+TO\b", re.DOTALL | re.IGNORECASE)
_RECORDSET = re.compile(
    rf"(?P<literal>{_LITERAL})|\bjsonb?_to_recordset\((?P<value>[^()]+)\)\s*(?:AS\s+)?(?P<alias>\w+)\s*\((?P<columns>[^()]+)\)",
    re.DOTALL | re.IGNORECASE,
)


def unqualified(sql: str) -> str:
    """The log and its views by their bare names, which can be made to mean a part of them."""
    if any(found["past"] for found in _PAST_TIMES.finditer(sql)):
        raise QueryError("With times given the log is asked as audit_logs: not by the table of one month")
    return _SCHEMA.sub(lambda found: found["literal"] or "", sql)


def readable(sql: str) -> str:
    """The question as DuckDB's parser can read it."""
    if any(not found["literal"] for found in _SIMILAR.finditer(sql)):
        raise QueryError("SIMILAR TO is not understood over archived months. Use ~ or LIKE")
    bound = _ARROW.sub(lambda found: found["literal"] or f"@{found['arrow']}", sql)
    whole = _NO_COLUMNS.sub(lambda found: found["literal"] or "SELECT 1 ", bound)
    return _RECORDSET.sub(
        lambda found: found["literal"] or _records(*found.group("value", "alias", "columns")), whole
    )


def understood(serialised: str, tables: Mapping[str, Mapping[str, str]], reserved: Collection[str]) -> str:
    """The tree of one SELECT that reads these tables and nothing else, meant as PostgreSQL would mean it.

    `tables` says the type of each column.
    """
    tree = checked(serialised, tables, reserved)
    json_names = _json_names(tree, [tables[name] for name in tables_of(serialised) if name in tables])
    for part in _parts(tree):
        _refuse(part, json_names)
    for part in _parts(tree):
        _put_right(part)
    for part in _parts(tree):
        if part.get("type") == "SELECT_NODE":
            for column in part["select_list"]:
                column["alias"] = column.get("alias") or _name(column)
    return json.dumps(tree)


def checked(serialised: str, tables: Collection[str], reserved: Collection[str]) -> Tree:
    """The tree, if nothing in it reaches further than these tables."""
    tree: Tree = json.loads(serialised)
    if tree["error"]:
        raise QueryError(_told(tree))
    if len(tree["statements"]) != 1:
        raise QueryError("Ask one question at a time: this is more than one statement")
    named = {name.lower() for part in _parts(tree) for name in _names_given(part)}
    if taken := named & set(reserved) - set(tables):
        raise QueryError(f"{min(taken)} is the name of something else here. Give it another name")
    for part in _parts(tree):
        _check(part, {*tables, *named})
    return tree


def tables_of(serialised: str) -> set[str]:
    parts = _parts(json.loads(serialised))
    return {part["table_name"].lower() for part in parts if part.get("type") == "BASE_TABLE"}


def _check(part: Tree, known: Collection[str]) -> None:
    kind = part.get("type")
    if isinstance(kind, str) and "class" not in part and not _is_known(kind):
        raise QueryError(f"Only a plain SELECT can be asked over archived months, without {kind}")
    if kind == "BASE_TABLE":
        _check_table(part, known)
    if kind == "TABLE_FUNCTION":
        name = part["function"]["function_name"]
        if name.lower() not in _TABLE_FUNCTIONS:
            raise QueryError(f"{name} cannot be asked as a table over archived months")
    if part.get("class") == "FUNCTION" and part["function_name"].lower() in _FUNCTIONS_REFUSED:
        raise QueryError(f"{part['function_name']} tells nothing about the log, and is refused")


def _check_table(part: Tree, known: Collection[str]) -> None:
    place = [part.get("catalog_name"), part.get("schema_name"), part["table_name"]]
    name = ".".join(filter(None, place))
    if part.get("catalog_name") or (part.get("schema_name") or SCHEMA).lower() != SCHEMA:
        raise QueryError(f"There is no table {name} for auditors")
    if part["table_name"].lower() not in known:
        raise QueryError(f"There is no table {name} for auditors")


def _is_known(kind: str) -> bool:
    return kind in _PARTS or kind.endswith("_TYPE_INFO")


def _names_given(part: Tree) -> Iterator[str]:
    """To the question's own subqueries."""
    if part.get("cte_name"):
        yield part["cte_name"]
    for entry in (part.get("cte_map") or {}).get("map", ()):
        yield entry["key"]


def _refuse(part: Tree, json_names: Collection[str]) -> None:
    """What DuckDB would answer otherwise than PostgreSQL, and nothing here puts right."""
    if part.get("class") == "FUNCTION":
        second = part["children"][1] if len(part["children"]) > 1 else None
        _refuse_function(str(part["function_name"]).lower(), _literal(second))
    if any(_is_json(value, json_names) for value in _operands(part)):
        raise QueryError(
            "Over archived months JSON is neither compared nor joined as a whole:"
            " ask for a part of it, as in filters ->> 'module' = '3', or for its text, as in filters::text"
        )


def _refuse_function(name: str, second: str | None) -> None:
    """`second`: what it is given in second place, if that stands there word for word."""
    if name in _OTHERWISE:
        raise QueryError(f"{name} means something else over archived months")
    if name in _MATCHES and (second is None or _FOREIGN.search(second)):
        raise QueryError(
            r"Over archived months a pattern is a text that says its signs, without \w or [:alpha:]"
        )
    if name == "to_char" and (second is None or not _FORM.fullmatch(second)):
        raise QueryError("Over archived months to_char knows YYYY, MM, DD, HH24, MI, SS, US and signs alone")
    if name in _PART_OF_TEXT and (second or "").startswith("-"):
        raise QueryError(f"{name} cannot begin before the text over archived months")
    if name in _ARROWS and (second or "").startswith(("$", "/")):
        raise QueryError("Over archived months the name after an arrow begins with neither $ nor /")


def _operands(part: Tree) -> list[Tree]:
    """What an operator works on to which JSON is a text here; arrows know what it is."""
    kind, name = part.get("class"), part.get("function_name")
    if kind == "COMPARISON":
        return [part["left"], part["right"]]
    if kind == "BETWEEN":
        return [part["input"]]
    if kind == "OPERATOR" and part["type"] in {"COMPARE_IN", "COMPARE_NOT_IN"}:
        return list(part["children"])
    if kind == "SUBQUERY":
        return [part["child"]] if part.get("child") else []
    if kind == "FUNCTION" and name not in _ARROWS and (part["is_operator"] or name in {*_MATCHES, "nullif"}):
        return list(part["children"])
    return []


def _json_names(tree: Tree, tables: Iterable[Mapping[str, str]]) -> set[str]:
    """Of columns that are JSON: those of the tables, and what the question calls them."""
    names = {name for columns in tables for name, kind in columns.items() if kind in _JSON}
    called = [part for part in _parts(tree) if part.get("class") and part.get("alias")]
    while new := {part["alias"].lower() for part in called if _is_json(part, names)} - names:
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
    """A text or number as it stands there; PostgreSQL writes it with its type."""
    while value and value["class"] == "CAST":
        value = value["child"]
    return str(value["value"].get("value", "")) if value and value["class"] == "CONSTANT" else None


def _put_right(part: Tree) -> None:
    name = part.get("function_name") if part.get("class") == "FUNCTION" else None
    if name in _MATCHES:
        match = part | {"function_name": "regexp_matches", "is_operator": False}
        match["children"] = [*part["children"][:2], _constant(_MATCHES[name])]
        match["alias"] = part["alias"] or "?column?"
        if name.startswith("!"):
            negated = {"class": "OPERATOR", "type": "OPERATOR_NOT", "query_location": part["query_location"]}
            match = negated | {"alias": match["alias"], "children": [match | {"alias": ""}]}
        part.clear()
        part |= match
    elif name in _LIKE and _has_backslash(part["children"][1]):
        part |= {"function_name": _LIKE[name], "is_operator": False, "alias": part["alias"] or "?column?"}
        part["children"].append(_constant("\\"))
    elif name in _ARROWS:
        part["function_name"] = _ARROWS[name]
    elif part.get("type") == "BASE_TABLE":
        part["schema_name"] = ""
    elif part.get("id") == "DECIMAL" and _is_plain(part["type_info"]):
        part |= {"id": "DOUBLE", "type_info": None}  # numeric, which here would have three decimals


def _is_plain(decimal: Tree | None) -> bool:
    return decimal is None or (decimal.get("width"), decimal.get("scale")) == (18, 3)


def _has_backslash(pattern: Tree) -> bool:
    """There it escapes what follows; of a pattern that is computed nobody knows."""
    return pattern["class"] != "CONSTANT" or "\\" in str(pattern["value"].get("value"))


def _constant(text: str) -> Tree:
    value = {"type": {"id": "VARCHAR", "type_info": None}, "is_null": False, "value": text}
    return {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "query_location": 0, "value": value}


def _name(column: Tree) -> str:
    """What PostgreSQL calls a column to which the question gives no name; none if DuckDB says the same."""
    kind = column["class"]
    if kind in {"COLUMN_REF", "STAR"}:
        return ""
    if kind in _NAMED and not column.get("is_operator"):
        return _NAMED[kind](column)
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


_NAMED = {
    "FUNCTION": _function_name,
    "WINDOW": _function_name,
    "CAST": _cast_name,
    "SUBQUERY": _subquery_name,
}


def _parts(node: Any) -> Iterator[Tree]:
    """Every object of a tree, outer ones first."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _records(value: str, alias: str, columns: str) -> str:
    """`jsonb_to_recordset(value) AS alias(columns)`, for which DuckDB has other words."""
    cells = []
    for column in columns.split(","):
        name, kind = column.strip().split(None, 1)
        path = name.strip('"').replace("'", "''")
        cells.append(f"CAST(item @->> '{path}' AS {kind}) AS {name}")
    items = f"(SELECT unnest(CAST({value} AS JSON[])) AS item)"
    return f"(SELECT {', '.join(cells)} FROM {items}) AS {alias}"  # noqa: S608  read and checked like all of it


def _told(tree: Tree) -> str:
    words = tree["error_message"]
    if tree["error_type"] == "not implemented":
        return "Only a SELECT can be asked over archived months"
    at = tree.get("position")
    return f"{words} (at character {int(at) + 1})" if at else words
