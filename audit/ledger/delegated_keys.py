"""The keys that sign rows and receipts while the log's own key is far away: in memory only, delegated for a day.

No answer waits for a network. The next key is delegated by a thread, half a day before the current one ends, and is used
once its delegation is where verifiers look for it. If the far key is away for longer, the current one is used to its end,
and then nothing is recorded, so nothing is answered.
"""

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from audit.errors import NoSigningKeyError
from audit.proof.keys import HeadSigner, PublicKey, SigningKey, delegate

LIVES = timedelta(days=1)
RENEWED_BEFORE = timedelta(hours=12)
# A key counts a little earlier than it is used: for requests that began before it, and those of a machine whose clock is behind.
BACK = timedelta(minutes=5)
# No request begins so shortly before a key's end: its receipt, which bears a later time, must be of the key's time too.
SPARE = timedelta(minutes=10)
LOOK_EVERY_S = 30.0  # whether a key is due; not one long wait, because a machine may sleep in between
KEPT_MAX = 3  # keys of our own time: the current one, and those of requests that began before it
COVERING_MAX = 16  # keys of other times

DELEGATIONS = "SELECT line FROM public.audit_delegations ORDER BY number"

log = logging.getLogger(__name__)


_Key = tuple[datetime, datetime, SigningKey]  # from, until


class DelegatedKeys:
    """One for each process. `publish` makes a delegation known, durably, or fails: an unknown key must not sign."""

    def __init__(
        self, parent: HeadSigner, publish: Callable[[PublicKey], None], clock: Callable[[], datetime]
    ) -> None:
        self._parent = parent
        self._publish = publish
        self._clock = clock
        self._keys: list[_Key] = []
        self._covering: list[_Key] = []
        self._delegating = threading.Lock()
        self._is_ended = threading.Event()
        self._failure = ""

    def start(self) -> None:
        """The first key, and a thread for the next ones. `NoSigningKeyError` if the far key does not sign."""
        self._renew()
        threading.Thread(target=self._run, name="delegated keys", daemon=True).start()

    def close(self) -> None:
        self._is_ended.set()

    def at(self, moment: datetime) -> SigningKey:
        for begin, until, key in (*reversed(self._keys), *reversed(self._covering)):
            if begin <= moment < until - SPARE:
                return key
        raise NoSigningKeyError(f"No delegated key may sign for {moment}. {self._failure}".strip())

    def cover(self, begin: datetime, until: datetime) -> None:
        """For requests of other processes that died: they may be older than any of our keys."""
        with self._delegating:
            if not any(
                first <= begin and until < last - SPARE for first, last, _ in (*self._keys, *self._covering)
            ):
                made = self._made(begin, until + SPARE + timedelta(microseconds=1))
                self._covering = [*self._covering, made][-COVERING_MAX:]

    @property
    def holds_until(self) -> datetime:
        """From when on nothing is recorded unless the far key has delegated another one."""
        return max((until for _, until, _ in self._keys), default=self._clock()) - SPARE

    def _run(self) -> None:
        """A failure does not end it: it tries again until the last key has ended, and afterwards."""
        while not self._is_ended.wait(LOOK_EVERY_S):
            try:
                self._renew_if_due()
            except Exception as failure:  # noqa: BLE001  whatever it is, the next try may succeed
                self._report(str(failure) or type(failure).__name__)
            else:
                self._report("")

    def _renew_if_due(self) -> None:
        if self._clock() >= self.holds_until + SPARE - RENEWED_BEFORE:
            self._renew()

    def _renew(self) -> None:
        with self._delegating:
            now = self._clock()
            self._keys = [*self._keys, self._made(now - BACK, now + LIVES)][-KEPT_MAX:]

    def _made(self, begin: datetime, until: datetime) -> _Key:
        key = SigningKey.in_memory()
        self._publish(delegate(key.public, begin, until, self._parent))
        return begin, until, key

    def _report(self, failure: str) -> None:
        if failure and not self._failure:
            log.warning(
                "The signing key delegates no other key (%s). Records are signed until %s UTC; then nothing is answered.",
                failure, f"{self.holds_until:%Y-%m-%d %H:%M:%S}",
            )  # fmt: skip
        if self._failure and not failure:
            log.warning("The signing key delegates again.")
        self._failure = failure
