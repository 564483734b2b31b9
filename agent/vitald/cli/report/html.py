"""`vitald report --html`: the status page as one file, without the secrets of the configuration."""

from __future__ import annotations

import argparse
from pathlib import Path

from vitald.cli.page.reading import read_page
from vitald.cli.page.template import PageTemplate
from vitald.cli.report.configuration import find_socket, read_configuration
from vitald.cli.report.redact import Redactor


def make_page(config: Path, socket: Path | None, timeout: float) -> tuple[bytes, str]:
    """The document, and why it has nothing of the node; empty where it has. `timeout`: seconds for
    each answer of the daemon.
    """
    redactor = Redactor()
    found = read_configuration(config, redactor)
    place = socket or find_socket(found.config)
    page = read_page(argparse.Namespace(socket=place, timeout=timeout))

    def redact(text: str) -> str:
        data = text.encode(errors="replace")
        return redactor.remove_secrets(data).decode(errors="replace")

    return PageTemplate(redact).render_page(page).encode(errors="replace"), page.error
