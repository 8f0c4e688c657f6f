"""Handlers of the commands about API keys (`keys …`) and about their clients' conversations (`sessions …`)."""

import argparse
import json
import re
from dataclasses import asdict
from datetime import timedelta

from engine import wiring
from engine.admission.keys import key_id_of
from engine.cli.output import (
    FOUND_SOMETHING,
    JSON,
    SCOPES,
    WRONG_USAGE,
    Arguments,
    Command,
    argument,
    book_id,
    print_rows,
    say,
)  # fmt: skip
from engine.models import RATE
from engine.settings import Settings
from engine.terminal import known_books
from engine.words import suggestions

_DURATION = re.compile(r"(?P<count>[0-9]{1,4})(?P<unit>[smhd])|0")


async def keys_create(settings: Settings, arguments: Arguments) -> int:
    """Create a key. Its secret is printed once and not stored."""
    if arguments.book and "erase" in arguments.scope:
        say(
            "A key for some books cannot erase: an erasure reaches all books. Leave out --book, or the scope erase."
        )
        return WRONG_USAGE
    async with wiring.open_existing_database(settings) as database, wiring.open_keys(database) as keys:
        async with wiring.open_registry(database) as registry:
            await known_books.check(registry, *arguments.book)
        print(await keys.create(arguments.client, arguments.scope, arguments.limit, arguments.book))
    return 0


async def keys_list(settings: Settings, arguments: Arguments) -> int:
    """List all keys, without their secrets."""
    async with wiring.open_existing_database(settings) as database, wiring.open_keys(database) as keys:
        found = [asdict(key) for key in await keys.all()]
    print_rows(
        found,
        as_json=arguments.json,
        empty="No keys yet. Try: affidavit keys create --client NAME",
        on_terminal=("key_id", "client_id", "scopes", "books", "revoked_at"),
    )
    return 0


async def keys_rotate(settings: Settings, arguments: Arguments) -> int:
    """Create a new secret for the same client, scopes and books. The old one stays valid for --overlap."""
    async with wiring.open_existing_database(settings) as database, wiring.open_keys(database) as keys:
        secret = await keys.rotate(arguments.key_id, arguments.overlap)
    if secret is None:
        say(f"There is no valid key {arguments.key_id}: run `affidavit keys list`.")
        return FOUND_SOMETHING
    print(secret)
    return 0


async def keys_revoke(settings: Settings, arguments: Arguments) -> int:
    """Revoke a key: requests with it are refused from now on."""
    async with wiring.open_existing_database(settings) as database, wiring.open_keys(database) as keys:
        revoked = await keys.revoke(key_id=arguments.key_id)
    print("Revoked." if revoked else f"There is no valid key {arguments.key_id}: run `affidavit keys list`.")
    return 0 if revoked else FOUND_SOMETHING


async def sessions_purge(settings: Settings, arguments: Arguments) -> int:
    """Delete sessions without activity for sessions.purge_days. Run it daily."""
    async with wiring.open_existing_database(settings) as database:
        async with wiring.open_sessions(settings, database) as sessions:
            purged, held = await sessions.purge(), await sessions.held()
        if held:
            async with wiring.operator_events_of(database).event("sessions purge") as trail:
                trail.reason = f"{held} sessions are under a hold and stay"
    days = settings.sessions.purge_days
    if arguments.json:
        print(json.dumps({"purged": purged, "held": held, "days": days}))
    else:
        print(f"{purged} sessions without activity for {days} days were deleted.")
        print(end=f"HELD  {held} more stay until the holds on their records are released.\n" if held else "")
    return 0


def _key_id(text: str) -> str:
    """The ID, of a whole key too: it is not printed again."""
    return key_id_of(text) or text


def _scopes(text: str) -> list[str]:
    scopes = text.split(",")
    for scope in scopes:
        if scope not in SCOPES:
            meant = suggestions.did_you_mean(scope, SCOPES)
            raise argparse.ArgumentTypeError(f"{scope!r} is no scope. {meant}They are: {', '.join(SCOPES)}")
    return scopes


def _rate(text: str) -> str:
    if not RATE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text} is not a rate such as 100/minute, 50/hour or 1000/day")
    return text


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is not a duration such as 30m, 24h, 7d or 0")
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    return timedelta(**{units[found["unit"] or "s"]: int(found["count"] or 0)})


_KEY_ID = argument(
    "key_id", type=_key_id, metavar="ID", help="as `affidavit keys list` prints it, or the whole key"
)

KEY_COMMANDS: dict[str, Command] = {
    "keys create": Command(
        keys_create, "affidavit keys create --client docs-site --limit 100/minute",
        (
            argument("--client", required=True, metavar="NAME", help="the application that will use the key"),
            argument("--scope", type=_scopes, default=["ask"], help=f"comma-separated: {', '.join(SCOPES)} (default: ask)"),
            argument("--limit", type=_rate, metavar="RATE", help="for example 100/minute (default: limits.per_key of the settings)"),
            argument(
                "--book", action="append", type=book_id, default=[], metavar="ID",
                help="the only book that the key may ask; repeat it for more (default: every book)",
            ),
        ),
    ),
    "keys list": Command(keys_list, "affidavit keys list --json", (JSON,)),
    "keys rotate": Command(
        keys_rotate, "affidavit keys rotate 1a2b3c4d5e --overlap 24h",
        (
            _KEY_ID,
            argument(
                "--overlap", type=_duration, default="24h", metavar="TIME",
                help="how long the old secret stays valid, for example 30m, 24h or 7d; 0 revokes it now (default: 24h)",
            ),
        ),
    ),
    "keys revoke": Command(keys_revoke, "affidavit keys revoke 1a2b3c4d5e", (_KEY_ID,)),
    "sessions purge": Command(sessions_purge, "affidavit sessions purge --json", (JSON,)),
}  # fmt: skip
