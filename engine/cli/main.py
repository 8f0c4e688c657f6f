"""The console script: the parser of the command line, and the process around each command (signals, exit codes)."""

import argparse
import asyncio
import signal
import sys
from importlib.metadata import version

from audit.errors import AuditError
from engine import settings as settings_file
from engine.cli.audit_commands import AUDIT_COMMANDS
from engine.cli.book_commands import BOOK_COMMANDS
from engine.cli.doctor import DOCTOR_COMMANDS
from engine.cli.erasure_commands import ERASURE_COMMANDS
from engine.cli.evaluation_commands import EVALUATION_COMMANDS
from engine.cli.key_commands import KEY_COMMANDS
from engine.cli.output import DATA_DIR, FOUND_SOMETHING, Arguments, Command, say
from engine.cli.serving_commands import SERVING_COMMANDS
from engine.errors import AffidavitError, IndexUnavailableError

COMMANDS: dict[str, Command] = {
    **SERVING_COMMANDS,
    **BOOK_COMMANDS,
    **EVALUATION_COMMANDS,
    **KEY_COMMANDS,
    **AUDIT_COMMANDS,
    **ERASURE_COMMANDS,
    **DOCTOR_COMMANDS,
}

_GROUPS = {
    "keys": "API keys",
    "audit": "the audit log",
    "sessions": "conversations",
    "index": "the search index",
}


def main() -> None:
    """Exit 0 when all is well, 1 when something was found or failed, 2 for wrong usage."""
    arguments = parser().parse_args()
    try:
        sys.exit(asyncio.run(_run(arguments)))
    except KeyboardInterrupt:
        sys.exit(_interrupted(arguments))
    except IndexUnavailableError as failure:
        print(f"affidavit: {failure} The index says: {failure.reason}", file=sys.stderr)
        sys.exit(FOUND_SOMETHING)
    except (AffidavitError, AuditError, OSError) as failure:
        print(f"affidavit: {failure}", file=sys.stderr)
        sys.exit(FOUND_SOMETHING)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="affidavit",
        description="An answer engine under oath: answers only from the book, each with a record that proves it.",
        epilog="Example: affidavit up",
    )
    parser.add_argument("--version", action="version", version=f"affidavit {version('affidavit')}")
    groups = {"": parser.add_subparsers(metavar="COMMAND", required=True)}
    for name, command in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        if group not in groups:
            about = _GROUPS[group]
            below = groups[""].add_parser(group, help=about, description=f"Commands for {about}.")
            groups[group] = below.add_subparsers(metavar="COMMAND", required=True)
        _add_command(groups[group], word, command)
    return parser


def _add_command(
    to: "argparse._SubParsersAction[argparse.ArgumentParser]", word: str, command: Command
) -> None:
    about = (command.run.__doc__ or "").strip()
    below = to.add_parser(word, help=about, description=about, epilog=f"Example: {command.example}")
    for names, options in (*command.arguments, *([DATA_DIR] if command.has_settings else [])):
        below.add_argument(*names, **options)
    below.set_defaults(
        run=command.run, has_settings=command.has_settings, runs_until_stopped=command.runs_until_stopped
    )


async def _run(arguments: Arguments) -> int:
    """SIGTERM cancels a command as Ctrl-C does, so that it stops what it started."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    settings = [settings_file.load(data_dir=arguments.data_dir)] if arguments.has_settings else []
    try:
        result: int = await arguments.run(*settings, arguments)
    except asyncio.CancelledError:
        return _interrupted(arguments)
    return result


def _interrupted(arguments: Arguments) -> int:
    """A signal is a clean exit for a server; for any other command it is a failure."""
    if arguments.runs_until_stopped and not getattr(arguments, "once", False):
        return 0
    say("Interrupted: it was not finished.")
    return FOUND_SOMETHING
