"""The same search over archived months, as SQL for all tiers (pure). Words are not searched there: what was said is encrypted."""

from audit.search.criteria import COLUMNS, Criteria
from audit.search.finding import SHOWN
from audit.search.pasted import Pasted

_SAID = ("user_query_text", "answer_text")
_IDS = ("log_id", "query_id", "answer_id", "session_id", "writer")
_BY_KIND = {"id": _IDS, "name": ("request_id", "provider_request_id")}


def statement(criteria: Criteria, given: Pasted | None, limit: int) -> str | None:
    """None: this search cannot be asked of archived months, as one for a passage, or for a hash that is no leaf's."""
    if criteria.text and (given is None or given.kind == "hash"):
        return None
    tests = [_among(given)] if given else []
    if given is None:
        values = {column: getattr(criteria, name) for name, column in COLUMNS.items()}
        tests = [f"{column} = {_quoted(value)}" for column, value in values.items() if value]
    if criteria.books is not None:
        tests.append(f"book_id IN ({', '.join(map(_quoted, sorted(criteria.books))) or 'NULL'})")
    columns = ", ".join(f"NULL AS {name}" if name in _SAID else name for name in SHOWN)
    found = f"SELECT {columns} FROM audit_logs WHERE {' AND '.join(tests) or 'true'}"  # noqa: S608
    return f"{found} ORDER BY timestamp DESC, log_id DESC LIMIT {limit}"


def _among(given: Pasted) -> str:
    columns = _BY_KIND.get(given.kind, (given.kind,))
    value = _quoted(given.value)
    return f"({' OR '.join(f'CAST({name} AS text) = {value}' for name in columns)})"


def _quoted(value: str) -> str:
    return "'{}'".format(value.replace("'", "''"))
