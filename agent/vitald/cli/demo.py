"""
`vitald demo`: a simulated node with GPUs, on any machine with a C compiler, and the real daemon
watching it.

A short story, about a minute long: a healthy node, a GPU that runs hot, a memory row that waits to
be remapped, a GPU that falls off the bus. Everything it shows is marked as simulated. Nothing
outside a temporary folder is touched.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

from vitald.cli import EX_UNAVAILABLE, CommandFailed, client, render, run_command, words
from vitald.simulator.build import CannotBuild
from vitald.simulator.node import SimulatedNode

if TYPE_CHECKING:
    from vitald.server import schema

_TIMEOUT_S = 30.0
# A test holds them to agent/vitald/simulator/profiles.toml, which would be read for the help alone.
_MODELS = ("t4", "v100", "a100", "l40s", "h100", "h200", "b200", "gb200")
_HOT, _REMAPPED, _LOST = 3, 2, 5
# With the libraries that this process has: those of a package are not where a bare interpreter
# looks.
_DAEMON = (
    "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); from vitald.cli import main;"
    " sys.exit(main())"
)
_CONFIG = """\
[paths]
sysfs = "{folder}/node/sysfs"
state = "{folder}/state"
runtime = "{folder}/run"

[kernel_log]
source = "file"
path = "{folder}/kernel.log"

[nvml]
library = "{library}"
fast = "1s"
slow = "2s"
inventory = "30s"

# The rest of the machine is real: none of the story's business.
[host]
enabled = false

[metrics]
listen = "127.0.0.1:{port}"

[catalog.overrides."nvml/temperature"]
watch = {{ of = "margin_celsius", below = 1, for = "2s" }}   # a minute, outside of demos
"""


class DemoFailed(CommandFailed):
    exit_code = EX_UNAVAILABLE


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile", choices=_MODELS, default="h100", help="the model of its GPUs (default: h100)"
    )
    parser.add_argument(
        "--pause",
        type=_parse_pause,
        default=8.0,
        metavar="SECONDS",
        help="to read each chapter (default: 8)",
    )
    parser.add_argument(
        "--stay", action="store_true", help="leave the node running at the end, until Ctrl-C"
    )


def _parse_pause(text: str) -> float:
    return 0.0 if text == "0" else words.parse_seconds(3600)(text)


def run(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="vitald-demo-") as name:
        folder = Path(name)
        try:
            node = SimulatedNode(folder / "node", arguments.profile)
            library = node.library
        except CannotBuild as error:
            raise DemoFailed(f"the simulated GPU library cannot be built: {error}") from None
        except (KeyError, ValueError) as error:
            raise DemoFailed(str(error)) from None
        (folder / "kernel.log").touch()
        port = _free_port()
        (folder / "config.toml").write_text(
            _CONFIG.format(folder=folder, library=library, port=port)
        )
        with _run_daemon(folder, node) as place:
            _Demo(node, place, port, arguments.pause).run_chapters()
            if arguments.stay:
                print("\nThe node stays as it is until Ctrl-C. Ask it:")
                print(
                    f"    vitald status --socket {place}\n    vitald gpus --socket {place}\n   "
                    f" curl -s http://127.0.0.1:{port}/metrics"
                )
                try:
                    while True:
                        time.sleep(3600)
                except KeyboardInterrupt:
                    print()
    return 0


class _Demo:
    """What happens to the node, and what vitald says of it."""

    def __init__(self, node: SimulatedNode, place: Path, port: int, pause: float) -> None:
        self.node, self.place, self.port, self.pause = node, place, port, pause

    def run_chapters(self) -> None:
        gpus = self.node.addresses
        hot, remapped, lost = (number % len(gpus) for number in (_HOT, _REMAPPED, _LOST))
        self._print_chapter(
            "1. A healthy node",
            f"{len(gpus)} GPUs, simulated below the driver's library; the daemon is the real one.",
        )
        self._wait_until(lambda status: status["status"] == "healthy")
        self._run_verb("gpus")
        self._run_verb("status")

        self._print_chapter(
            "2. A GPU runs hot",
            f"gpu/{gpus[hot]} has no margin left and slows down. Advice, and no reason to stop"
            " work:",
        )
        self.node.set(hot, {"temp_c": 92, "margin_c": -1, "throttle": "0x68"})
        self._wait_until(_has_codes("nvml/temperature"))
        self._run_verb("status")
        self.node.set(hot, {"temp_c": 41, "margin_c": 46, "throttle": "0x0"})
        self._wait_until(lambda status: status["status"] == "healthy")
        print("    ... the fan is mended, and the finding ends by itself.")

        self._print_chapter(
            "3. A row of memory is remapped",
            f"The kernel log tells Xid 63 of gpu/{gpus[remapped]}, and NVML that the remap waits"
            " for a reset:",
        )
        self.node.set(remapped, {"remap": "0 1 1 0"})
        self._run_verb("inject", "xid", "63", "--device", gpus[remapped])
        self._wait_until(_has_codes("nvml/row_remap_pending"))
        self._run_verb("status")
        print("\n    Jobs may go on and begin; the reset waits for the next maintenance:")
        self._run_verb("check", "--for", "running")
        self._run_verb("check", "--for", "prolog")

        self._print_chapter(
            "4. A GPU falls off the bus",
            f"gpu/{gpus[lost]}: Xid 79 in the kernel log, and NVML cannot reach it. One incident,"
            " told once:",
        )
        self.node.lose(lost)
        self._run_verb("inject", "xid", "79", "--device", gpus[lost])
        self._wait_until(_has_codes("nvml/gpu_lost", "xid/79"))
        self._run_verb("status")
        self._run_verb("gpus")
        print()
        render.print_line(
            f"    rebootRequired as Prometheus sees it (http://127.0.0.1:{self.port}/metrics):"
            f" {self._read_metric('vitald_reboot_required')}"
        )
        print()
        render.print_line(
            "That was all of it. On a node with GPUs: vitald run, or the service. None of this was"
            " real."
        )

    def _print_chapter(self, title: str, text: str) -> None:
        time.sleep(self.pause if not title.startswith("1") else 0)
        print(f"\n{render.colour_text(title, 'bold')}")
        render.print_line(f"    {text}")

    def _run_verb(self, *words: str) -> None:
        print(f"\n{render.colour_text('$ vitald ' + ' '.join(words), 'dim')}", flush=True)
        config = (
            ["--config", str(self.place.parent.parent / "config.toml")]
            if words[0] == "inject"
            else []
        )
        run_command([*words, *config, "--socket", str(self.place), "--timeout", "5"])

    def _read_metric(self, name: str) -> str:
        """The sample as it is exposed."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return next((line for line in lines if line.startswith(f"{name} ")), f"{name} is not there")

    def _wait_until(self, holds: Callable[[schema.NodeStatus], bool]) -> None:
        until = time.monotonic() + _TIMEOUT_S
        asking = argparse.Namespace(socket=self.place, timeout=5.0)
        while not holds(client.read_status(asking)):
            if time.monotonic() > until:
                self._run_verb("status")
                raise DemoFailed(
                    "that is not what the daemon should say: please report this, with the output of"
                    " vitald version"
                )
            time.sleep(0.1)


def _has_codes(*codes: str) -> Callable[[schema.NodeStatus], bool]:
    """All of these are told: as findings, or in an incident."""

    def holds(status: schema.NodeStatus) -> bool:
        members = [member for incident in status["incidents"] for member in incident["members"]]
        return {str(one["code"]) for one in [*members, *status["findings"]]} >= {*codes}

    return holds


@contextmanager
def _run_daemon(folder: Path, node: SimulatedNode) -> Iterator[Path]:
    """The real one, over the simulated node."""
    place, log = folder / "run/vitald.sock", folder / "log"
    with log.open("wb") as stderr:
        daemon = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-c",
                _DAEMON,
                "\n".join(sys.path),
                "run",
                "--config",
                str(folder / "config.toml"),
            ],
            env={**os.environ, **node.environment},
            stdout=stderr,
            stderr=stderr,
        )
        try:
            until = time.monotonic() + _TIMEOUT_S
            while not place.exists():
                if daemon.poll() is not None or time.monotonic() > until:
                    raise DemoFailed(
                        f"the daemon did not start:\n{log.read_text(errors='replace')}"
                    )
                time.sleep(0.05)
            yield place
        finally:
            daemon.terminate()
            daemon.wait(timeout=10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
