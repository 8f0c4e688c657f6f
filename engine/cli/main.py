"""The console script: the parser of the command line, and the process around each command (signals, exit codes)."""

import argparse
import asyncio
import signal
import sys
from importlib.metadata import version

from audit.errors import AuditError
from engine import logs
from engine import settings as settings_file
from engine.cli.audit_log.access_commands import ACCESS_COMMANDS
from engine.cli.audit_log.audit_commands import AUDIT_COMMANDS
from engine.cli.audit_log.chart_commands import CHART_COMMANDS
from engine.cli.audit_log.erasure_commands import ERASURE_COMMANDS
from engine.cli.audit_log.evidence_commands import EVIDENCE_COMMANDS
from engine.cli.audit_log.export_commands import EXPORT_COMMANDS
from engine.cli.audit_log.hold_commands import HOLD_COMMANDS
from engine.cli.audit_log.report_commands import REPORT_COMMANDS
from engine.cli.audit_log.review_commands import REVIEW_COMMANDS
from engine.cli.audit_log.search_commands import SEARCH_COMMANDS
from engine.cli.book_commands import BOOK_COMMANDS
from engine.cli.doctor import DOCTOR_COMMANDS
from engine.cli.evaluation_commands import EVALUATION_COMMANDS
from engine.cli.key_commands import KEY_COMMANDS
from engine.cli.output import DATA_DIR, FOUND_SOMETHING, Arguments, Command, argument, fail, say
from engine.cli.serving_commands import SERVING_COMMANDS
from engine.connections import event_loop
from engine.errors import AffidavitError, IndexUnavailableError
from engine.terminal import completion, hangup
from engine.terminal.parser import CommandParser


async def complete(arguments: Arguments) -> int:
    """Print the script that completes commands, options and values in your shell."""
    print(completion.SCRIPTS[arguments.shell](completion.nodes(parser())), end="")
    return 0


COMMANDS: dict[str, Command] = {
    **SERVING_COMMANDS,
    **BOOK_COMMANDS,
    **EVALUATION_COMMANDS,
    **KEY_COMMANDS,
    **AUDIT_COMMANDS,
    **CHART_COMMANDS,
    **ACCESS_COMMANDS,
    **ERASURE_COMMANDS,
    **EXPORT_COMMANDS,
    **HOLD_COMMANDS,
    **REVIEW_COMMANDS,
    **SEARCH_COMMANDS,
    **EVIDENCE_COMMANDS,
    **REPORT_COMMANDS,
    **DOCTOR_COMMANDS,
    "completion": Command(
        complete,
        "affidavit completion bash > ~/.local/share/bash-completion/completions/affidavit",
        (argument("shell", choices=tuple(completion.SCRIPTS), help=", ".join(completion.SCRIPTS)),),
        has_settings=False,
    ),
}

_GROUPS = {
    "keys": "API keys",
    "audit": "the audit log",
    "audit access": "approvals to see what is masked",
    "audit hold": "legal holds",
    "audit review": "the review of a sample",
    "sessions": "conversations",
    "index": "the search index",
    "vault": "the vault",
    "drill": "drills",
}


def main() -> None:
    """Exit 0 when all is well, 1 when something was found or failed, 2 for wrong usage."""
    arguments = parser().parse_args()
    try:
        loop = event_loop.of_server if arguments.runs_until_stopped else None
        with asyncio.Runner(loop_factory=loop) as runner:
            sys.exit(runner.run(_run(arguments)))
    except KeyboardInterrupt:
        sys.exit(_interrupted(arguments))
    except IndexUnavailableError as failure:
        sys.exit(fail(f"{failure} The index says: {failure.reason}"))
    except (AffidavitError, AuditError) as failure:
        sys.exit(fail(str(failure)))
    except OSError as failure:
        named = f"{failure.filename}: {failure.strerror}" if failure.filename else str(failure)
        sys.exit(fail(named))


def parser() -> CommandParser:
    parser = CommandParser(
        prog="affidavit",
        description="An answer engine under oath: answers only from the book, each with a record that proves it.",
        epilog="Example: affidavit up",
    )
    parser.add_argument("--version", action="version", version=f"affidavit {version('affidavit')}")
    groups = {"": parser.add_subparsers(metavar="COMMAND", required=True)}
    for name, command in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        if group not in groups:
            above, _, called = group.rpartition(" ")
            about = _GROUPS[group]
            below = groups[above].add_parser(called, help=about, description=f"Commands for {about}.")
            groups[group] = below.add_subparsers(metavar="COMMAND", required=True)
        _add_command(groups[group], word, command)
    return parser


def _add_command(to: "argparse._SubParsersAction[CommandParser]", word: str, command: Command) -> None:
    about = (command.run.__doc__ or "").strip()
    below = to.add_parser(word, help=about, description=about, epilog=f"Example: {command.example}")
    for names, options in (*command.arguments, *([DATA_DIR] if command.has_settings else [])):
        below.add_argument(*names, **options)
    below.set_defaults(
        run=command.run, has_settings=command.has_settings, runs_until_stopped=command.runs_until_stopped
    )


async def _run(arguments: Arguments) -> int:
    """SIGTERM, and a terminal that is closed, cancel a command as Ctrl-C does, so that it stops what it started."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    hangup.obey(task.cancel)
    if not arguments.runs_until_stopped:
        logs.configure_for_command()
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
