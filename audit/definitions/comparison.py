"""What differs between a database and the schema that was shipped: what auditors see must be what `verify` checks.

A difference says in words what it can hide and what to do. Objects of an operator's own in other schemas, months that left
for the archive and months made ahead are none.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import psycopg

from audit.definitions.listing import SESSION, Definition, definitions
from audit.definitions.outsiders import outsiders
from audit.proof.verdict import Finding, Report, Verdict

# A line that is not in sql/schema.sql can only be harmless for what it is not attached to.
_ATTACHED = frozenset({"column", "constraint", "trigger", "rule", "policy"})
_CAN = {
    "migration": "Then the database is of another version of this program, and the other differences may be no more than that",
    "table": "It can be another thing than a table, or hide rows from some readers by row-level security",
    "view": "It can leave rows out, change values or make rows up",
    "column": "It can show other values than were recorded",
    "constraint": "It can refuse records, or let one be there twice",
    "trigger": "It can drop or change records while they are written, or let them be changed afterwards",
    "rule": "It can redirect what is read or written",
    "policy": "It can hide rows from some readers",
    "rights": "Somebody may change or erase what they should not",
    "function": "It can write, guard or erase records otherwise than it should",
}
_DO = "Find out who changed it and when, and put it back as sql/schema.sql has it"
_MIGRATE = "Run `affidavit migrate`, or compare with the version of this program that migrated it"
# The others are gone through when records are written, and seals show what came of that.
_MISLEADING = frozenset({"migration", "table", "view", "column", "rule", "policy"})


@dataclass(frozen=True, slots=True)
class Difference:
    """`misleads`: a query may show other rows than `verify` checks."""

    what: str
    can: str
    do: str
    misleads: bool = True

    def __str__(self) -> str:
        return f"{self.what}. {self.can}. {self.do}."


def differences(connection: psycopg.Connection, shipped: Mapping[str, str]) -> list[Difference]:
    """Changes the session's settings to those of SESSION. `shipped` are the digests in sql/definitions.json."""
    connection.execute(SESSION.encode(), prepare=False)
    found = definitions(connection)
    strange = [Difference(*row) for row in outsiders(connection)]
    changed = [*_changed(found, shipped), *_added(found, shipped)]
    return [*sorted(changed, key=lambda each: each.do != _MIGRATE), *strange]


def check_with(
    connection: psycopg.Connection, shipped: Mapping[str, str], check: Callable[[], Report]
) -> Report:
    """The report of the check, with a finding for each difference: records are as good as the way to them."""
    findings = [Finding(Verdict.TAMPERED, "schema", str(each)) for each in differences(connection, shipped)]
    try:
        report = check()
    except psycopg.errors.InsufficientPrivilege:  # a policy would hide rows, or a right is missing
        if not findings:
            raise
        report = Report()
        findings.append(
            Finding(Verdict.CANNOT_TELL, "row", "The records cannot all be read, so they were not checked")
        )
    for finding in findings:
        report.add(finding)
    return report


def _changed(found: list[Definition], shipped: Mapping[str, str]) -> Iterator[Difference]:
    here = {str(each): each for each in found}
    for name, digest in shipped.items():
        if name not in here:
            yield _difference(name, "is missing")
        elif here[name].digest != digest:
            yield _difference(name, "is not the one that was shipped")


def _added(found: list[Definition], shipped: Mapping[str, str]) -> Iterator[Difference]:
    for each in found:
        is_attached = each.kind in _ATTACHED and f"table {each.relation}" in shipped
        if (is_attached or each.kind == "migration") and str(each) not in shipped:
            yield _difference(str(each), "does not belong there")


def _difference(name: str, state: str) -> Difference:
    kind = name.partition(" ")[0]
    do = _MIGRATE if kind == "migration" else _DO
    return Difference(f"The {name} {state}", _CAN[kind], do, kind in _MISLEADING)
