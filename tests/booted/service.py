"""vitald in a booted machine: what a test asks of it, in a word each."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import cast

from tests.booted.machine import Done, Machine
from tests.waiting import until

Json = dict[str, object]
UNITS = ("vitald.service", "vitald.socket", "vitald-retry.timer")
BELIEVING = "[kernel_log]\nuserspace = 'confirmed'\n"
SOCKET = "/run/vitald/vitald.sock"


def fresh_pci() -> str:
    """An address that no machine has and no other test uses: the kernel log is shared."""
    return f"{secrets.randbelow(0xEFFF) + 0x1000:04x}:{secrets.randbelow(0xFF):02x}:00"


def xid(pci: str, code: int = 79, number: int = 1) -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, pid={number}, name=python3, GPU has fallen off the bus."


class Service:
    """The service of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def vitald(self, *arguments: str, user: str = "root", check: bool = True) -> Done:
        return self.machine.run("vitald", *arguments, user=user, check=check)

    @property
    def status(self) -> Json:
        return self.get("/v1/status")[1]

    def get(self, path: str, user: str = "root", timeout: float = 10.0) -> tuple[int, Json]:
        """The HTTP status and the answer; 0 where nobody could be asked."""
        done = self._curl(path, user, timeout)
        text, _, code = done.stdout.rpartition("\n")
        return int(code), cast("Json", json.loads(text)) if text else {}

    def post(self, path: str, body: str, user: str = "root") -> int:
        done = self._curl(
            path, user, 10.0, "--header", "Content-Type: application/json", "--data", body
        )
        return int(done.stdout.rpartition("\n")[2])

    def _curl(self, path: str, user: str, timeout: float, *more: str) -> Done:
        command = (
            "curl",
            "-s",
            "-w",
            "\n%{http_code}",
            "--max-time",
            str(timeout),
            "--unix-socket",
            SOCKET,
            *more,
            f"http://vitald{path}",
        )
        return self.machine.run(*command, user=user, check=False, timeout=timeout + 20)

    def findings(self, pci: str = "") -> list[Json]:
        """The open ones, of one GPU or of all."""
        of = f"&component=gpu/{pci}.0" if pci else ""
        return cast("list[Json]", self.get(f"/v1/findings?limit=1000{of}")[1].get("findings", []))

    def events(self, pci: str) -> list[Json]:
        found = cast(
            "list[Json]",
            self.get(f"/v1/events?limit=1000&component=gpu/{pci}.0")[1].get("events", []),
        )
        return [one for one in found if str(one["code"]).startswith("xid/")]

    def drill(self, pci: str, code: int) -> Json:
        """The finding of a drill."""
        self.vitald("drill", "xid", str(code), "--device", pci, "--timeout", "10")
        (finding,) = self.findings(pci)
        return finding

    def clear(self, pci: str) -> None:
        for finding in self.findings(pci):
            self.vitald("clear", str(finding["id"]), "--reason", "test")

    def calm(self) -> None:
        """As if nothing had happened: no open finding, and the starts so far do not count."""
        self.machine.run(
            "systemctl", "reset-failed", "vitald.service", "vitald.socket", check=False
        )
        if self.states()[0] == "active":
            for finding in self.findings():
                self.vitald("clear", str(finding["id"]), "--reason", "test", check=False)

    def write(self, *lines: str) -> None:
        """To the kernel log, which is the machine's and the host's; as a process does it."""
        fd = os.open("/dev/kmsg", os.O_WRONLY | os.O_CLOEXEC)
        try:
            for line in lines:
                os.write(fd, f"<3>{line}\n".encode())
        finally:
            os.close(fd)

    def states(self) -> tuple[str, ...]:
        return tuple(self.machine.run("systemctl", "is-active", *UNITS, check=False).stdout.split())

    @property
    def pid(self) -> int:
        return int(self.machine.show("vitald", "MainPID"))

    @property
    def restarts(self) -> int:
        return int(self.machine.show("vitald", "NRestarts"))

    def looked(self) -> bool:
        """Every source has looked at least once since the start."""
        code, status = self.get("/v1/status")
        sources = cast("list[Json]", status.get("sources", []))
        return code == 200 and all(one["state"] != "starting" for one in sources)

    def ready(self) -> None:
        until(
            lambda: (
                self.machine.run("systemctl", "is-active", "-q", "vitald", check=False).returncode
                == 0
            ),
            "vitald",
        )
        until(self.looked, "its first look")

    def believe(self) -> None:
        """From now on, lines of processes count as the kernel's."""
        self.configure(BELIEVING)
        self.machine.run("systemctl", "reload", "vitald")
        pci = fresh_pci()

        def believed() -> bool:
            self.write(xid(pci))
            return len(self.findings(pci)) == 1

        until(believed, "the new configuration")
        self.clear(pci)

    def configure(self, text: str) -> None:
        self.machine.write("/etc/vitald/config.toml", text)

    def drop_in(self, unit: str, text: str) -> Path:
        """A change to a unit, until `undo`."""
        path = Path(f"/run/systemd/system/{unit}.d/test.conf")
        self.machine.run("sh", "-c", f"mkdir -p {path.parent} && cat >{path}", stdin=text)
        self.machine.run("systemctl", "daemon-reload")
        return path

    def undo(self, drop_in: Path) -> None:
        self.machine.run("rm", str(drop_in))
        self.machine.run("systemctl", "daemon-reload")

    def log(self) -> str:
        return self.machine.run(
            "journalctl", "-u", "vitald", "-b", "--no-pager", "-o", "cat"
        ).stdout
