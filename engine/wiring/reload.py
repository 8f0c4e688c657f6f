"""Settings that a serving process takes over without a restart: those that only a request reads, whole tables of them.

Everything else is built once, at start: connections, vendors' clients, caches, the sealer. Of these a change waits for a restart.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from engine.admission.proxies import TrustedProxies
from engine.admission.public_tokens import TokenKeyring
from engine.errors import ConfigurationError
from engine.house import House
from engine.settings import Settings, Table
from engine.wiring.books import gate_of
from engine.wiring.house import of_settings

RELOADED = ("confidence", "limits", "page", "retrieval", "server")

log = logging.getLogger(__name__)


class Reloading:
    """The settings of a process, and what it does when they may have changed. It never ends anything."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        take_over: Callable[[Settings], None],
        count: Callable[[str], None],
    ) -> None:
        self._settings, self._load, self._take_over, self._count = settings, load, take_over, count

    def reload(self) -> None:
        """Wrong settings change nothing. Requests under way keep what they began with."""
        try:
            loaded = self._load()
        except ConfigurationError as wrong:
            log.error("The settings were not reloaded, and those of before stay. %s", wrong)  # noqa: TRY400  its own words say why
            self._count("refused")
            return
        self._settings = self._settings.model_copy(
            update={table: getattr(loaded, table) for table in RELOADED}
        )
        self._take_over(self._settings)
        waiting = ", ".join(_differing(self._settings, loaded))
        log.warning("The settings were reloaded%s", f"; needs a restart: {waiting}" if waiting else "")
        self._count("needs_restart" if waiting else "applied")


def _differing(now: Settings, loaded: Settings) -> Iterator[str]:
    """The names only: a value may be a secret."""
    for name in Settings.model_fields:
        before, after = getattr(now, name), getattr(loaded, name)
        if isinstance(before, Table):
            yield from (
                f"{name}.{key}"
                for key in type(before).model_fields
                if getattr(before, key) != getattr(after, key)
            )
        elif before != after:
            yield name


def reloaded(house: House, settings: Settings) -> House:
    """The same parts with these settings. Limits go on counting."""
    origins = frozenset(settings.server.allowed_origins)
    engine = house.engine
    assert isinstance(engine.keyring, TokenKeyring)
    engine.limiter.set_rates(**settings.limits.model_dump(exclude={"body_bytes"}))
    return replace(
        house,
        engine=replace(
            engine,
            keyring=engine.keyring.allowing(origins),
            retriever=replace(
                engine.retriever,
                weights=gate_of(settings).weights,
                candidates_each=settings.retrieval.candidates,
            ),
            rules=replace(engine.rules, **of_settings(settings)),
        ),
        top_k=settings.retrieval.top_k,
        body_bytes_max=settings.limits.body_bytes,
        page_enabled=settings.page.enabled,
        proxies=TrustedProxies.named(settings.server.trusted_proxies),
        allowed_origins=origins,
    )
