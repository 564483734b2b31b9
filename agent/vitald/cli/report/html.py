"""`vitald report --html`: the status page as one file, without the secrets of the configuration."""

from __future__ import annotations

import argparse
from pathlib import Path

from vitald.cli.page.build import read_page
from vitald.cli.page.template import PageTemplate
from vitald.cli.report.redact import Redactor, find_existing_socket, read_configuration


def make_page(
    config: Path, socket: Path | None, timeout: float
) -> tuple[bytes, list[tuple[str, str]]]:
    """The document; what is missing, and why. `timeout`: seconds for each answer of the daemon."""
    redactor, missing = Redactor(), list[tuple[str, str]]()
    found = read_configuration(config, redactor)
    if found.unreadable:
        missing.append(("a search for the configuration's secrets", found.unreadable))
    place = socket or find_existing_socket(found.config)
    page = read_page(argparse.Namespace(socket=place, timeout=timeout))
    if page.error:
        missing.append(("all that the daemon knows", page.error))

    def redact(text: str) -> str:
        data = text.encode(errors="replace")
        return redactor.remove_secrets(data).decode(errors="replace")

    return PageTemplate(redact).render_page(page).encode(errors="replace"), missing
