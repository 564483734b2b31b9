"""
`vitald recovery run|status`. `run` is for vitald-recover.service, as root; `status` is for people.

Neither loads what only the other one needs.
"""

from __future__ import annotations

import argparse

from vitald.cli import config_options


def options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    help_ = "settings, the request, what prevents it, and the recent decisions"
    status = what.add_parser("status", help=help_, description=help_)
    help_ = "decide on the daemon's request and act: called by vitald-recover.service, as root"
    run_ = what.add_parser("run", help=help_, description=help_)
    for verb in (status, run_):
        config_options.add_config_option(verb)
    status.add_argument("--json", action="store_true", help="one JSON document")
    run_.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and why; change nothing"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "run":
        from vitald.cli.recovery.run import run_attempt

        return run_attempt(arguments)
    from vitald.cli.recovery.status import show_status

    return show_status(arguments)
