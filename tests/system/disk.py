"""A disk that can be full, read-only or damaged, and what the ledger on it holds."""

from __future__ import annotations

import random
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from tests.conftest import require
from tests.harness import Node


class Disk:
    """A small file system of its own for the state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def mount(self, size: str) -> None:
        self.folder.mkdir(parents=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "vitald-test", str(self.folder)],
            capture_output=True,
        )
        require(done.returncode == 0, "the right to mount a tmpfs")

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.folder)], check=True)

    def fill(self) -> None:
        with (self.folder / "filler").open("ab", buffering=0) as filler:
            try:
                while filler.write(b"\0" * 4096):
                    pass
            except OSError:
                pass

    def unfill(self) -> None:
        (self.folder / "filler").unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True)


def stored(node: Node) -> list[int]:
    """The pids of the Xids on disk, read past the daemon."""
    with closing(sqlite3.connect(node.state / "ledger.db")) as ledger:
        return [
            row[0]
            for row in ledger.execute(
                "SELECT json_extract(fields, '$.pid') FROM events WHERE kind = 'xid' ORDER BY id"
            )
        ]


def used_bytes(node: Node) -> int:
    with closing(sqlite3.connect(node.state / "ledger.db")) as ledger:
        pages, free, size = (
            ledger.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


def open_codes(node: Node) -> set[object]:
    return {finding["code"] for finding in node.findings()}


def damage(path: Path, first: int, seed: int = 1) -> None:
    """Random bytes over a file, from an offset to its end."""
    chance = random.Random(seed)
    with path.open("r+b") as file:
        file.seek(first)
        file.write(chance.randbytes(max(0, path.stat().st_size - first)))
