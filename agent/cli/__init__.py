"""
The command `vitald`: one module a verb, each thin. It asks the socket and prints.

A verb is imported only when it is called, and none but `run` imports what the daemon needs: `vitald check` stands in
schedulers' prologs and must answer in tens of milliseconds.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Collection, Sequence

from agent import __version__

EX_USAGE, EX_UNAVAILABLE, EX_CONFIG = 64, 69, 78

# Verb -> (module, one line of help). Each module has `options(parser)` and `run(arguments) -> exit code`.
VERBS = {
    "run": ("run", "run the daemon in the foreground"),
    "status": ("status", "what is wrong with this node, and what to do"),
    "check": ("check", "may this node take work? one line and an exit code, for schedulers"),
    "events": ("events", "what has happened"),
    "findings": ("findings", "what is wrong now, in full"),
    "why": ("why", "how a finding came to be, from the raw lines to the flags"),
    "gpus": ("gpus", "the GPUs at a glance"),
    "components": ("components", "what is watched, by whom, and what cannot be observed here"),
    "expect": ("expect", "what this node should have, who says so, and what is here"),
    "release": ("release", "let go of the GPUs for a while, for a reset, a driver reload or a MIG change"),
    "diag": ("diag", "run, list and read hardware diagnostics: vitald diag run 2"),
    "slurm": ("slurm", "what Slurm's prolog, epilog and health check program call"),
    "recovery": ("recovery", "who reboots or replaces this node, what is asked for, and what was decided"),
    "recover": ("recover", "decide on the daemon's request, and act: what vitald-recover.service runs, as root"),
    "explain": ("explain", "what a code means: vitald explain xid/79"),
    "scan": ("scan", "judge a saved kernel log: vitald scan FILE|-"),
    "replay": ("replay", "judge a ledger or a saved log once more, by other rules: what would change?"),
    "report": ("report", "one archive for a support case: what happened, with all the evidence"),
    "inject": ("inject", "a drill: put a fault line into the real kernel log, announced and marked as simulated"),
    "clear": ("clear", "close a finding, with a reason"),
    "remedy": ("remedy", "say that a finding's remedy has begun"),
    "config": ("config", "check a configuration file"),
    "demo": ("demo", "a simulated node with 8 GPUs tells a short story"),
    "version": ("version", "print the version"),
}


class Failed(Exception):
    """The daemon was asked in vain; the text says what to try."""

    exit_code = 30


def parser(verbs: Collection[str] = VERBS.keys()) -> argparse.ArgumentParser:
    """The command line. Of verbs that are not named only the line of help is there, and their modules are not imported."""
    made = argparse.ArgumentParser(prog="vitald", description="Node health daemon for GPU and Trainium clusters.")
    made.add_argument("--version", action="version", version=f"vitald {__version__}")
    added = made.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (module, help_) in VERBS.items():
        sub = added.add_parser(name, help=help_, description=help_)
        if name in verbs:
            loaded = importlib.import_module(f"agent.cli.{module}")
            loaded.options(sub)
            sub.set_defaults(call=loaded.run)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code. Errors that a person must mend are one line on standard error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Only the verb that is called is imported; help wants no more than the table above.
    parsed = parser([word for word in arguments if not word.startswith("-")][:1]).parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = parsed.call
    try:
        return run(parsed)
    except BrokenPipeError:
        # `vitald events | head`: the reader has gone, which is no error of ours.
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130
    except Failed as error:
        print(f"vitald: {error}", file=sys.stderr)
        return error.exit_code
