"""
The command `vitald`: one thin module per verb, which queries the daemon's socket and prints.

A verb is imported only when it is called, and only `run` imports what the daemon needs: `vitald
check` runs in schedulers' prologs and must answer in tens of milliseconds.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from vitald import __version__
from vitald.cli.streams import OutputError, ReaderGone, Streams

# Exit codes beside those of a verdict, which are in agent/vitald/cli/check.py; docs/api.md lists
# all of them.
EX_USAGE = 2  # argparse's own
EX_NOINPUT, EX_UNAVAILABLE, EX_IOERR, EX_CONFIG = 66, 69, 74, 78
INTERRUPTED, READER_GONE = 130, 141


class Verb(NamedTuple):
    """Its module, of this package, has `options(parser)` and `run(arguments) -> exit code`."""

    module: str
    help: str
    group: str


_ASK, _OPERATE, _DIAGNOSE = "Ask about this node", "Operate it", "Test its hardware"
_OFFLINE, _CALLED = "Drills, saved logs and the catalogue", "Called by other programs"
_SERVE = "Configure and serve"
VERBS = {
    "status": Verb("status", "what is wrong with this node, and what to do", _ASK),
    "check": Verb(
        "check", "may this node take work? one line and an exit code, for schedulers", _ASK
    ),
    "findings": Verb("findings", "what is wrong now, in full", _ASK),
    "why": Verb("why", "how a finding came to be, from the raw lines to the flags", _ASK),
    "events": Verb("events", "what has happened, and what became of findings", _ASK),
    "gpus": Verb("gpus", "the GPUs at a glance", _ASK),
    "components": Verb(
        "components", "what is watched, by which source, and what cannot be observed here", _ASK
    ),
    "expect": Verb("expect", "the devices and versions expected on this node, and found", _ASK),
    "recovery": Verb(
        "recovery.command", "automatic reboot and replacement: settings, request, decisions", _ASK
    ),
    "page": Verb("page.command", "a web page about this node, on the loopback", _ASK),
    "clear": Verb("clear", "close findings, with a reason", _OPERATE),
    "accept": Verb(
        "accept",
        "live with findings for a time: shown, without effect on fitness and flags",
        _OPERATE,
    ),
    "remedy": Verb("remedy", "record that the remedy of findings has begun", _OPERATE),
    "release": Verb(
        "release",
        "release the GPUs for a while, for a reset, a driver reload or a MIG change",
        _OPERATE,
    ),
    "report": Verb(
        "report.command",
        "one archive for a support case, or one web page: what happened, with the evidence",
        _OPERATE,
    ),
    "diag": Verb(
        "diag.command", "run, list and read hardware diagnostics: vitald diag run 2", _DIAGNOSE
    ),
    "drill": Verb(
        "drill",
        "write a fault line, marked as simulated, to the real kernel log",
        _OFFLINE,
    ),
    "demo": Verb("demo", "a simulated node with 8 GPUs, on which faults happen", _OFFLINE),
    "scan": Verb("scan", "judge a saved kernel log: vitald scan FILE|-", _OFFLINE),
    "replay": Verb(
        "replay",
        "judge a ledger or a saved log again, by other rules: what would change?",
        _OFFLINE,
    ),
    "explain": Verb("explain", "what a code means: vitald explain xid/79", _OFFLINE),
    "slurm": Verb(
        "slurm.command",
        "what Slurm's prolog, epilog and health check program call; retire: before removal",
        _CALLED,
    ),
    "config": Verb("config", "check a configuration file, or have it read again", _SERVE),
    "run": Verb("run", "run the daemon in the foreground", _SERVE),
    "publish": Verb(
        "publish",
        "write the node's state to Kubernetes, to files and to receivers of notifications, in the"
        " foreground",
        _SERVE,
    ),
    "notify": Verb(
        "notify", "receivers of notifications: what they would be sent, and a test", _SERVE
    ),
    "version": Verb("version", "print the version", _SERVE),
}
# Their output may be cut short by the reader, as `head` does. Other verbs set their exit code last.
_LIST_VERBS = {"events", "findings", "why", "gpus", "components", "explain"}
# Their callers use the exit code alone: it stays the same if standard error is lost.
_EXIT_CODE_VERBS = {"run", "publish", "slurm", "recovery run"}


class CommandFailed(Exception):
    """A command could not be carried out; the text says what to try."""

    exit_code = 30


class UsageError(CommandFailed):
    """Arguments that contradict each other, or name what does not exist."""

    exit_code = EX_USAGE


class Parser(argparse.ArgumentParser):
    """`intermixed`: options may stand between positionals, also if some of these are optional."""

    intermixed = False
    _mixing = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if not self.intermixed or self._mixing:
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False


class _MainParser(Parser):
    """The parser of `vitald` itself: its help lists the verbs by group."""

    def format_help(self) -> str:
        head = (f"usage: {self.prog} VERB [OPTIONS]", "", str(self.description))
        return "\n".join([*head, *_list_verbs(), *_HELP_END, ""])


_HELP_END = (
    "",
    "vitald VERB --help     the options of a verb",
    "vitald --version       the version",
)


def _list_verbs() -> Iterator[str]:
    import textwrap

    heading = ""
    for name, (_, help_, group) in VERBS.items():
        if group != heading:
            heading = group
            yield from ("", heading)
        yield from textwrap.wrap(
            help_,
            80,
            initial_indent=f"  {name:<11} ",
            subsequent_indent=" " * 14,
            break_on_hyphens=False,
        )


def build_parser(verbs: Collection[str] = VERBS.keys()) -> argparse.ArgumentParser:
    """The parser of the command line. Only the modules of `verbs` are imported; the others have
    their line of help only.
    """
    made = _MainParser(
        prog="vitald", description="Node health daemon for GPU and Trainium clusters."
    )
    made.add_argument("--version", action="version", version=f"vitald {__version__}")
    added = made.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for name, (module, help_, _) in VERBS.items():
        sub = added.add_parser(name, help=help_, description=help_)
        if name in verbs:
            loaded = importlib.import_module(f"vitald.cli.{module}")
            loaded.options(sub)
            sub.set_defaults(call=loaded.run)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code. An error is reported as one line on standard error."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb, command = _find_verb(words), " ".join(_list_plain_words(words)[:2])
    code: int | SystemExit = 0 if verb in _LIST_VERBS else READER_GONE  # while it is not known
    with Streams() as streams:
        try:
            code = _run_to_exit_code(words)
            sys.stdout.flush()
        except ReaderGone:
            streams.discard()
        except OutputError as error:
            streams.discard()
            print(f"vitald: standard output cannot be written: {error}", file=sys.stderr)
            return EX_IOERR
    if isinstance(code, SystemExit):
        raise code
    is_only_code_used = not _EXIT_CODE_VERBS.isdisjoint((verb, command))
    return EX_IOERR if code == 0 and streams.lost_remarks and not is_only_code_used else code


def _list_plain_words(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]


def _find_verb(words: Sequence[str]) -> str:
    return next(iter(_list_plain_words(words)), "")


def _run_to_exit_code(words: Sequence[str]) -> int | SystemExit:
    try:
        return run_command(words)
    except SystemExit as ended:  # argparse's: a usage error, or help
        return ended
    except KeyboardInterrupt:
        return INTERRUPTED


def run_command(words: Sequence[str]) -> int:
    """Run a verb on the standard streams as they are. Returns the exit code."""
    verb = _find_verb(words)
    try:
        if not words:
            print(build_parser(()).format_help(), end="", file=sys.stderr)
            return EX_USAGE
        if verb and verb not in VERBS:
            raise UsageError(_describe_unknown_verb(verb))
        parsed = build_parser([verb]).parse_args(list(words))
        run: Callable[[argparse.Namespace], int] = parsed.call
        return run(parsed)
    except CommandFailed as error:
        print(f"vitald: {error}", file=sys.stderr)
        return error.exit_code


def _describe_unknown_verb(verb: str) -> str:
    import difflib

    close = difflib.get_close_matches(verb, VERBS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "vitald --help lists them"
    return f"no verb {verb!r}; {hint}"
