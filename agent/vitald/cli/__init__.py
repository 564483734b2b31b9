"""
The command `vitald`: one module a verb, each thin. It asks the socket and prints.

A verb is imported only when it is called, and none but `run` imports what the daemon needs: `vitald
check` stands in schedulers' prologs and must answer in tens of milliseconds.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Sequence

from vitald import __version__
from vitald.cli.streams import ReaderGone, Streams, Unwritten

# Exit codes beside those of a verdict, which are in agent/vitald/cli/check.py; all of them are in
# docs/reference/commands.md.
EX_USAGE = 2  # argparse's own
EX_NOINPUT, EX_UNAVAILABLE, EX_IOERR, EX_CONFIG = 66, 69, 74, 78
INTERRUPTED, READER_GONE = 130, 141

# Verb -> (module, one line of help, what it is for).
# Each module has `options(parser)` and `run(arguments) -> exit code`.
_ASK, _OPERATE, _DIAGNOSE = "Ask about this node", "Operate it", "Test its hardware"
_OFFLINE, _CALLED = "Drills, saved logs and the catalogue", "Called by other programs"
_SERVE = "Configure and serve"
VERBS = {
    "status": ("status", "what is wrong with this node, and what to do", _ASK),
    "check": ("check", "may this node take work? one line and an exit code, for schedulers", _ASK),
    "findings": ("findings", "what is wrong now, in full", _ASK),
    "why": ("why", "how a finding came to be, from the raw lines to the flags", _ASK),
    "events": ("events", "what has happened", _ASK),
    "gpus": ("gpus", "the GPUs at a glance", _ASK),
    "components": (
        "components",
        "what is watched, by whom, and what cannot be observed here",
        _ASK,
    ),
    "expect": ("expect", "what this node should have, who says so, and what is here", _ASK),
    "recovery": (
        "recovery",
        "who reboots or replaces this node, what is asked for, and what was decided",
        _ASK,
    ),
    "clear": ("clear", "close a finding, with a reason", _OPERATE),
    "accept": (
        "accept",
        "live with a finding for a time: shown, without effect on fitness and flags",
        _OPERATE,
    ),
    "remedy": ("remedy", "say that a finding's remedy has begun", _OPERATE),
    "release": (
        "release",
        "let go of the GPUs for a while, for a reset, a driver reload or a MIG change",
        _OPERATE,
    ),
    "report": (
        "report.command",
        "one archive for a support case: what happened, with all the evidence",
        _OPERATE,
    ),
    "diag": (
        "diag.command",
        "run, list and read hardware diagnostics: vitald diag run 2",
        _DIAGNOSE,
    ),
    "inject": (
        "inject",
        "a drill: put a fault line into the real kernel log, announced and marked as simulated",
        _OFFLINE,
    ),
    "demo": ("demo", "a simulated node with 8 GPUs tells a short story", _OFFLINE),
    "scan": ("scan", "judge a saved kernel log: vitald scan FILE|-", _OFFLINE),
    "replay": (
        "replay",
        "judge a ledger or a saved log once more, by other rules: what would change?",
        _OFFLINE,
    ),
    "explain": ("explain", "what a code means: vitald explain xid/79", _OFFLINE),
    "slurm": (
        "slurm.command",
        "what Slurm's prolog, epilog and health check program call",
        _CALLED,
    ),
    "recover": (
        "recover",
        "decide on the daemon's request, and act: what vitald-recover.service runs, as root",
        _CALLED,
    ),
    "config": ("config", "check a configuration file", _SERVE),
    "run": ("run", "run the daemon in the foreground", _SERVE),
    "version": ("version", "print the version", _SERVE),
}
# Lists: who reads only the beginning has what they want. The code of others is known at their end.
_LISTS = {"events", "findings", "why", "gpus", "components", "explain"}
# Who calls these goes by the exit code alone, which stays what it is if nobody keeps what they say.
_UNHEARD = {"run", "slurm", "recover"}


class Failed(Exception):
    """The daemon was asked in vain; the text says what to try."""

    exit_code = 30


class WrongUse(Failed):
    """Words of the command line that do not go together, or name what there is not."""

    exit_code = EX_USAGE


class Parser(argparse.ArgumentParser):
    """`intermixed`: options may stand between positionals, also where some may be left out."""

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


class _Whole(Parser):
    """`vitald` itself: its help has the verbs by what they are for."""

    def format_help(self) -> str:
        head = (f"usage: {self.prog} VERB [OPTIONS]", "", str(self.description))
        return "\n".join([*head, *_verbs_by_purpose(), *_HELP_END, ""])


_HELP_END = (
    "",
    "vitald VERB --help     the options of a verb",
    "vitald --version       the version",
)


def _verbs_by_purpose() -> Iterator[str]:
    import textwrap

    heading = ""
    for name, (_, help_, purpose) in VERBS.items():
        if purpose != heading:
            heading = purpose
            yield from ("", heading)
        indents = {"initial_indent": f"  {name:<11} ", "subsequent_indent": " " * 14}
        yield from textwrap.wrap(help_, 80, break_on_hyphens=False, **indents)  # type: ignore[arg-type]


def parser(verbs: Collection[str] = VERBS.keys()) -> argparse.ArgumentParser:
    """The command line. Of verbs that are not named only the line of help is there, and their
    modules are not imported.
    """
    made = _Whole(prog="vitald", description="Node health daemon for GPU and Trainium clusters.")
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
    """The exit code. Errors that a person must mend are one line on standard error."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = _verb_of(words)
    code: int | SystemExit = 0 if verb in _LISTS else READER_GONE  # while it is not known
    with Streams() as streams:
        try:
            code = _ended(words)
            sys.stdout.flush()
        except ReaderGone:
            streams.discard()
        except Unwritten as error:
            streams.discard()
            print(f"vitald: standard output cannot be written: {error}", file=sys.stderr)
            return EX_IOERR
    if isinstance(code, SystemExit):
        raise code
    return EX_IOERR if code == 0 and streams.lost_remarks and verb not in _UNHEARD else code


def _verb_of(words: Sequence[str]) -> str:
    return next((word for word in words if not word.startswith("-")), "")


def _ended(words: Sequence[str]) -> int | SystemExit:
    try:
        return answer(words)
    except SystemExit as ended:  # argparse's: a wrong use, or help
        return ended
    except KeyboardInterrupt:
        return INTERRUPTED


def answer(words: Sequence[str]) -> int:
    """What a verb comes to, by itself: the exit code."""
    verb = _verb_of(words)
    try:
        if not words:
            print(parser(()).format_help(), end="", file=sys.stderr)
            return EX_USAGE
        if verb and verb not in VERBS:
            raise WrongUse(_unknown(verb))
        # Only the verb that is called is imported; help wants no more than the table above.
        parsed = parser([verb]).parse_args(list(words))
        run: Callable[[argparse.Namespace], int] = parsed.call
        return run(parsed)
    except Failed as error:
        print(f"vitald: {error}", file=sys.stderr)
        return error.exit_code


def _unknown(verb: str) -> str:
    import difflib

    close = difflib.get_close_matches(verb, VERBS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "vitald --help lists them"
    return f"no verb {verb!r}; {hint}"
