"""The commands that the documents show for a booted machine with the package, run in their order:
see tests/doc_commands.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.booted.machine import Done, Machine
from tests.doc_commands import Where, commands, failures
from tests.system.test_docs_commands import with_blocks


@pytest.fixture
def calm() -> None:
    """These have a machine of their own: what they set up stays until its end."""


@pytest.fixture
def bare(package: Path) -> Iterator[Machine]:
    """With the package's file in root's folder, and nothing installed."""
    with Machine("vitald-docs") as made:
        shutil.copy(package, made.root / "root" / package.name)
        yield made


@pytest.mark.parametrize("document", with_blocks(Where.BOOTED))
def test_what_a_machine_is_told_works(bare: Machine, document: str) -> None:
    def shell(text: str) -> Done:
        return bare.run("sh", "-c", f"cd /root\n{text}", check=False, timeout=120.0)

    told = commands(document, Where.BOOTED)
    if not any(
        "apt-get install" in command.text for command in told[:1]
    ):  # the guide installs it itself
        bare.run("sh", "-c", "apt-get install -y /root/vitald_*.deb", timeout=120.0)
    failed = [text for command in told for text in failures(command, shell, {})]
    assert not failed, "\n".join(failed)
