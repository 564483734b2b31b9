"""The status page as it is now: read, or the page that says why it cannot be."""

from __future__ import annotations

import argparse
import socket
from datetime import datetime, timezone

from vitald.cli import CommandFailed
from vitald.cli.page.answers import read_answers
from vitald.cli.page.build import build_error_page, build_page
from vitald.cli.page.model import Page, Span


def read_page(arguments: argparse.Namespace, span: Span | None = None) -> Page:
    """The page of the daemon on `arguments.socket`, with `arguments.timeout` seconds for each
    answer; without a verdict the page that says why. `span`: of the timeline.
    """
    try:
        return build_page(read_answers(arguments), datetime.now(timezone.utc), span)
    except CommandFailed as error:
        return describe_failure(str(error))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Of a daemon of another version, or of something that is no daemon
        return describe_failure(f"the daemon's answer cannot be read: {error!r:.200}")


def describe_failure(error: str) -> Page:
    """The page of a daemon that did not answer."""
    return build_error_page(socket.gethostname(), error, datetime.now(timezone.utc))
