"""HTTP/1.1 on one connection: what is malformed or arrives too slowly gets its row too, and nothing is read after it.

The connection tells the `Occupancy` when it is idle, and ends when it is told to.
"""

import asyncio
from http import HTTPStatus
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from engine.admission.overload.turnstile import Ticket
from engine.connections.door import Visitor
from engine.connections.occupancy import Occupancy
from engine.connections.shedding import Refused, Shedder
from engine.errors import NotHttpError, RequestError, TooSlowError, UnknownCodingError
from engine.http.middleware import MALFORMED_BODY, MALFORMED_HEAD
from engine.http.request_context import TICKET

ARRIVE_S = 10.0  # the timeout for a request to arrive completely; the engine itself gives up earlier
CODING = b"transfer-encoding"
FRAMING = frozenset({b"content-length", CODING})  # the headers that tell where a request ends
HEAD_BYTES_MAX = 16 * 1024  # a key, a request id and the headers that proxies add take less than 2 KiB


class UnambiguousConnection(h11.Connection):
    """Refuses a request whose end two readers could see in two places (RFC 9112, 6.1): the rest would be a second request.

    And another major version of HTTP, which h11 reads as 1.1.
    """

    is_head = False
    failure: type[NotHttpError] = NotHttpError

    def next_event(self) -> Any:
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as malformed:
            if malformed.error_status_hint == HTTPStatus.NOT_IMPLEMENTED:
                self.failure = UnknownCodingError
            raise
        if isinstance(event, h11.Request):
            framing = {name for name, _ in event.headers} & FRAMING
            is_misread = event.http_version < b"1.1" and CODING in framing  # such a version knows no coding
            if framing == FRAMING or is_misread or event.http_version >= b"2":
                self.is_head = event.method == b"HEAD"
                raise h11.RemoteProtocolError("ambiguous framing, or another version of HTTP")
        return event


class PatientProtocol(H11Protocol, Visitor):
    """HTTP/1.1 with a read timeout: a request sent byte by byte holds its connection for ten seconds, not for ever.

    A malformed request passes through the application, because every response has a row. Nothing is read after it.
    """

    _deadline: asyncio.TimerHandle | None = None
    _is_malformed = _is_cut_off = False
    conn: UnambiguousConnection

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        occupancy: Occupancy,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = UnambiguousConnection(h11.SERVER, HEAD_BYTES_MAX)
        self._occupancy = occupancy
        self._shedder = Shedder(app_state)
        self._refused: Refused | None = None
        self._held = bytearray()  # what arrives after the head of a refused question, until it is answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._start_timer()
        if self._is_cut_off:  # before it was made
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._hold(data, self._refused)
        elif not self._is_malformed:
            seen = self._shedder.look(data) if self._may_shed else None
            if isinstance(seen, Refused):
                self._refuse(seen, data)
            else:
                super().data_received(data)
                self._pass_on(seen)
                self.note_progress()

    @property
    def _may_shed(self) -> bool:
        """Between two requests only: what follows the first bytes of one is no head. The queue is asked last."""
        if self.conn.their_state is not h11.IDLE or self._is_running or self.conn.trailing_data[0]:
            return False
        return not (self._occupancy.is_ending or self.flow.write_paused) and self._shedder.is_needed

    def _pass_on(self, ticket: Ticket | None) -> None:
        """With the request, which gives the ticket back at its end."""
        if ticket and self._is_running:
            self.cycle.scope["state"][TICKET] = ticket
        elif ticket:
            ticket.leave()

    def _refuse(self, refused: Refused, data: bytes) -> None:
        """The response leaves when the question has arrived completely and is counted."""
        self._unset_keepalive_if_required()
        self._refused = refused
        self._occupancy.occupy(self)
        self._hold(data[refused.head.ends_at :], refused)
        if self._deadline is None and len(self._held) < refused.head.body_bytes:
            self._start_timer()
        refused.counted.add_done_callback(lambda _: self._answer_refused(refused))

    def _hold(self, data: bytes, refused: Refused) -> None:
        """Not without bounds: a client may send its next requests already."""
        self._held += data
        if len(self._held) > refused.head.body_bytes + HEAD_BYTES_MAX:
            self.flow.pause_reading()
        self._answer_refused(refused)

    def _answer_refused(self, refused: Refused) -> None:
        length = refused.head.body_bytes
        if self._refused is not refused or self.transport.is_closing():
            return
        if len(self._held) < length or not refused.counted.done():
            return
        self.transport.write(self._shedder.response(refused, self.server_state.default_headers))
        rest, self._held, self._refused = bytes(self._held[length:]), bytearray(), None
        self._stop_timer()
        if self._occupancy.is_ending:
            self.transport.close()
            return
        self._occupancy.rest(self)
        self.flow.resume_reading()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
        if rest:
            self.data_received(rest)

    def shutdown(self) -> None:
        """A question that is being refused is answered first."""
        if self._refused is None:
            super().shutdown()

    def cut_off(self) -> None:
        self._is_cut_off = True
        if self.transport is not None:
            self.transport.abort()

    @property
    def _is_running(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]  # as in uvicorn

    def note_progress(self) -> None:
        if self._is_running:
            self._occupancy.occupy(self)
            if self._occupancy.is_ending:
                self._close_after_response()
        else:
            self._occupancy.rest(self)
        self._set_timer()

    def _close_after_response(self) -> None:
        self.cycle.keep_alive = False
        headers = cast(
            "list[tuple[bytes, bytes]]", self.cycle.scope["headers"]
        )  # the framework replaces the list
        if CLOSE_HEADER not in headers:
            headers.append(CLOSE_HEADER)  # then the response has it too

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  uvicorn calls it for each malformed request
        self._is_malformed = True
        if self._is_running:
            self.cycle.scope["state"][MALFORMED_BODY] = True
            self._close_after_response()
            self.cycle.message_event.set()
        elif self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._run_malformed(self.conn.failure)
        else:  # its response is sent already
            self.transport.close()

    def _run_malformed(self, failure: type[RequestError]) -> None:
        self.scope = {
            "type": "http", "asgi": {"version": self.asgi_version, "spec_version": "2.3"}, "http_version": "1.1",
            "server": self.server, "client": self.client, "scheme": self.scheme or "http",
            "method": "HEAD" if self.conn.is_head else "GET", "root_path": "", "path": "", "raw_path": b"",
            "query_string": b"", "headers": [CLOSE_HEADER], "state": self.app_state | {MALFORMED_HEAD: failure},
        }  # fmt: skip
        self.cycle = RequestResponseCycle(
            scope=self.scope, conn=self.conn, transport=self.transport, flow=self.flow, logger=self.logger,
            access_logger=self.access_logger, access_log=self.access_log,
            default_headers=self.server_state.default_headers, message_event=asyncio.Event(),
            on_response=self.on_response_complete,
        )  # fmt: skip
        self.cycle.keep_alive = False
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.note_progress()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._occupancy.leave(self)
        super().connection_lost(exc)

    def _set_timer(self) -> None:
        """Limits only a request that is arriving: between two requests uvicorn's own timeout for idle connections applies."""
        is_begun = self.conn.their_state is h11.SEND_BODY or self._has_begun_head
        if not is_begun or self._is_malformed:
            self._stop_timer()
        elif self._deadline is None:
            self._start_timer()

    @property
    def _has_begun_head(self) -> bool:
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def _start_timer(self) -> None:
        self._deadline = self.loop.call_later(ARRIVE_S, self._end_arrival)

    def _end_arrival(self) -> None:
        """A head that was begun is a request, and gets its row. Whoever has sent nothing has asked nothing."""
        if self._has_begun_head and not self._is_running:
            self._is_malformed = True
            self._run_malformed(TooSlowError)
            self.note_progress()
        else:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None
