"""Log collector: sealed rows as HTTP requests, a batch each, tried again until it is taken.

A batch that a kill interrupted is sent again with the same leaves under the same `Idempotency-Key`, so that a collector that
had taken it can tell.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date

import httpx

from audit.errors import DeliveryError
from audit.export.following import moved
from audit.export.formats import Form, SealedRow
from audit.export.position import Position, PositionFile, Sending, name_of
from audit.export.sealed_rows import SealedRows

TIMEOUT_S = 30.0
PAUSE_MAX_S = 60.0
_LATER = {408, 425, 429}  # besides 5xx: the collector asks for another try

Wait = Callable[[float], bool]
Say = Callable[[str], None]


@dataclass(slots=True)
class CollectorSink:
    url: str
    headers: dict[str, str]
    positions: PositionFile
    form: Form
    wait: Wait  # for the pause before another try; true: it is over
    say: Say
    _position: Position | None = None

    def begin(self) -> None:
        self._position = self.positions.load(self.form)

    def unfinished(self, rows: SealedRows) -> Position:
        assert self._position
        if sending := self._position.sending:
            month = date.fromisoformat(f"{sending.month}-01")
            for batch in rows.between(month, sending.begin, sending.end):
                self.deliver(batch)
        return self._position

    def deliver(self, batch: Sequence[SealedRow]) -> Position:
        assert self._position
        first, last = batch[0], batch[-1]
        sending = Sending(name_of(first.month), first.leaf_index, last.leaf_index + 1)
        self._position = replace(self._position, sending=sending)
        self.positions.save(self._position)
        self._send(self.form.encode(batch), sending)
        self._position = moved(self._position, batch)
        self.positions.save(self._position)
        return self._position

    def _send(self, body: bytes, sending: Sending) -> None:
        key = f"{sending.month}/{sending.begin:012d}-{sending.end:012d}"
        headers = self.headers | {"Content-Type": self.form.media_type, "Idempotency-Key": key}
        pause_s = 1.0
        while reason := self._try(body, headers):
            self.say(f"The collector did not take {key} ({reason}). Trying again in {pause_s:.0f} s.")
            if self.wait(pause_s):
                raise DeliveryError("Interrupted: the next run goes on with this batch.")
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _try(self, body: bytes, headers: dict[str, str]) -> str:
        """Why it was not taken; empty if it was."""
        try:
            response = httpx.post(self.url, content=body, headers=headers, timeout=TIMEOUT_S)
        except httpx.HTTPError as failure:
            return type(failure).__name__
        if response.is_success:
            return ""
        if response.is_server_error or response.status_code in _LATER:
            return f"status {response.status_code}"
        raise DeliveryError(
            f"The collector refuses the rows with status {response.status_code}. Check its address, its key"
            " (AFFIDAVIT_EXPORT__HEADERS) and the format; the next run goes on where this one stopped."
        )
