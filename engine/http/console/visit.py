"""What a page of the console gets, and what it gives back."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from audit.access.access import Access
from audit.markup import Markup
from engine.admission.reads import note_read
from engine.errors import ForbiddenError
from engine.house import House
from engine.models import Client, Trail


class Role(IntEnum):
    """Each may do what those below it may. The scopes of the API key give it, or the groups of a person."""

    AUDITOR = 1
    REVIEWER = 2
    LEAD = 3

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, client: Client) -> "Role":
        if "lead" in client.scopes:
            return cls.LEAD
        return cls.REVIEWER if "review" in client.scopes else cls.AUDITOR


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of somebody who is signed in. `trail` becomes its row; `query` and `form` have the last value of each name."""

    client: Client
    role: Role
    trail: Trail
    house: House
    form_token: str  # of a POST's form: the layout's `form` puts it there
    path: str
    place: Mapping[str, str] = field(default_factory=dict)  # the parts of the address in braces
    query: Mapping[str, str] = field(default_factory=dict)
    queries: Sequence[tuple[str, str]] = ()  # the same with every value of a name, in order
    form: Mapping[str, str] = field(default_factory=dict)
    forms: Sequence[tuple[str, str]] = ()
    approved_by: str | None = None  # the second person who approved the query's `approval`

    @property
    def who(self) -> str:
        return self.client.client_id

    def require(self, role: Role) -> None:
        """For what only some who see the page may do. `ForbiddenError` for others, and their row says so."""
        if self.role < role:
            raise ForbiddenError(f"This needs the role {role.word}; you are signed in as {self.role.word}.")

    def note(self, **about: Any) -> None:
        """Puts these members into the details of the request's row."""
        self.trail.details = (self.trail.details if isinstance(self.trail.details, dict) else {}) | about

    def note_access(
        self,
        *,
        filter: str,  # noqa: A002  the word of the view
        columns: Sequence[str],
        records: int | None,
        basis: str | None = None,
        second: str | None = None,
    ) -> None:
        """Say whose personal columns this request shows, before it shows them, and again once their number is known.

        `MaskedReadError` where the policy masks them: its page asks for the reason, which comes back as `basis` of the query.
        """
        given = basis or self.query.get("basis") or self.form.get("basis") or None
        access = Access(self.who, filter, columns, self.role.word, given, second or self.approved_by, records)
        note_read(self.trail, self.house.access_policy, access)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A page: the layout puts it between the navigation and the foot. `refresh_s` loads it again, also without JavaScript."""

    title: str
    body: Markup
    refresh_s: int | None = None
    leads_to: str | None = None  # an address that is opened at once, by the page and not by a redirect
    scripts: Sequence[str] = ()  # addresses of assets; the page says the same without them


@dataclass(frozen=True, slots=True)
class Download:
    """A file, such as the CSV of a chart."""

    name: str
    media_type: str
    content: str | bytes


@dataclass(frozen=True, slots=True)
class SeeOther:
    """Load this address of the console next: what a POST that has changed something answers."""

    path: str


Reply = Sheet | Download | SeeOther
Handler = Callable[[Visit], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """An address of the console, and what a GET and a POST of it do."""

    path: str
    show: Handler
    navigation: str = ""  # its word in the navigation, if it is there
    role: Role = Role.AUDITOR
    act: Handler | None = None
    act_role: Role = Role.AUDITOR
    act_only_reads: bool = False
