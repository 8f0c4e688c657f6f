"""The factory of evidence packages: the log in the auditor's role, and archived records with the keys of the archiver's."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from audit.checking.evidence import Period
from audit.checking.inspection import inspect
from audit.checking.range_judge import RangeJudges
from audit.packing.choice import Choice
from audit.progress import Progress
from engine import cores
from engine.settings import Settings
from engine.storage.database import AUDITOR, Database, as_role, reading
from engine.wiring.audit_log import row_keys_of
from engine.wiring.providers import now, vault_of, witness_policy_of
from engine.wiring.signing import head_key, known_keys

if TYPE_CHECKING:  # Arrow takes longer to load than most commands take
    from audit.packing.making import Making


@contextmanager
def open_making(
    settings: Settings, database: Database, choice: Choice, event: UUID, progress: Progress
) -> Iterator["Making"]:
    """`event` is the record that says that this package is being made."""
    from audit.packing.chosen_rows import ChosenRows
    from audit.packing.making import Making
    from audit.packing.period_evidence import PeriodEvidence

    vault, keys = vault_of(settings), known_keys(database)
    with ExitStack() as stack:
        connection = stack.enter_context(reading(database.url, AUDITOR))
        judges = stack.enter_context(RangeJudges(as_role(database.url, AUDITOR), cores.usable()))
        period = Period(choice.since, choice.until)
        evidence = PeriodEvidence(connection, vault, period, now(), judges)
        evidence.begin()
        rows = ChosenRows(evidence, vault, choice, row_keys_of(database, stack), progress)
        verify = partial(inspect, evidence, keys, progress)
        key, policy = head_key(database), _policy(settings)
        yield Making(rows, vault, key, keys, verify, event, now(), progress, policy)


def _policy(settings: Settings) -> bytes:
    """The witnesses that are asked, for information: an auditor believes a policy of his own."""
    if witness_policy_of(settings) is None:
        return b""
    return (settings.data_dir / settings.witness.policy).read_bytes()
