"""A node that can be booted: its boot id is a file of its own."""

from __future__ import annotations

import signal
from uuid import uuid4

from tests.harness import Node


class Machine:
    """Give it a node that has not been started."""

    def __init__(self, node: Node) -> None:
        self.node = node
        procfs = node.folder / "proc"
        self.boot_id = procfs / "sys/kernel/random/boot_id"
        self.boot_id.parent.mkdir(parents=True)
        node.configure("[paths]", f'[paths]\nprocfs = "{procfs}"')
        self.boot_id.write_text(f"{uuid4()}\n")

    def reboot(self, number: int = signal.SIGTERM) -> str:
        """The new boot's id."""
        self.node.stop(number)
        self.boot_id.write_text(f"{uuid4()}\n")
        self.node.start()
        return self.boot_id.read_text().strip()

    def boots(self) -> int:
        """How often the node was seen to boot."""
        return len(self.node.events("&code=vitald/boot"))
