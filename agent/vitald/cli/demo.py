"""
`vitald demo`: a simulated node with GPUs, on any machine with a C compiler, and the real daemon
watching it.

About a minute long: a healthy node, a GPU that runs hot, a memory row that waits to be remapped, a
GPU that falls off the bus. Everything it shows is marked as simulated. Nothing
outside a temporary folder is touched.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

from vitald.cli import EX_UNAVAILABLE, CommandFailed, argument_types, client, render, run_command
from vitald.cli.progress import WorkProgress
from vitald.simulator.simulated_library import CannotBuild
from vitald.simulator.simulated_node import SimulatedNode

if TYPE_CHECKING:
    from vitald.server import schema

_TIMEOUT_S = 30.0
# A test compares them with agent/vitald/simulator/profiles.toml, which is slow to read for help.
_MODELS = ("t4", "v100", "a100", "l40s", "h100", "h200", "b200", "gb200")
_HOT, _REMAPPED, _LOST = 3, 2, 5
# It ends with the demo, even if that is killed: PR_SET_PDEATHSIG is 1. With the module path of
# this process: a bare interpreter does not find a package's libraries.
_DAEMON = (
    "import ctypes, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM);"
    " sys.path[:] = sys.argv.pop(1).split('\\n'); from vitald.cli import main; sys.exit(main())"
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

# The rest of the machine is real, and no part of the demo.
[host]
enabled = false

[slurm]
record = "{folder}/slurm-reason"

[metrics]
listen = "127.0.0.1:{port}"

[catalog.overrides."nvml/temperature"]
thresholds = {{ of = "margin_celsius", below = 1, for = "2s" }}   # a minute, outside of demos
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
        help="pause before each chapter (default: 8)",
    )
    parser.add_argument(
        "--stay",
        action="store_true",
        help="leave the node running at the end, until Ctrl-C or the terminal is closed",
    )


def _parse_pause(text: str) -> float:
    return 0.0 if text == "0" else argument_types.parse_seconds(3600)(text)


def run(arguments: argparse.Namespace) -> int:
    with _exit_on_signals(), tempfile.TemporaryDirectory(prefix="vitald-demo-") as name:
        folder = Path(name)
        try:
            with WorkProgress(lambda: "builds the simulated GPU library"):
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
                print(f"    vitald status --socket {place}")
                print(f"    vitald gpus --socket {place}")
                print(f"    vitald page --socket {place}")
                print(f"    curl -s http://127.0.0.1:{port}/metrics", flush=True)
                try:
                    while True:
                        time.sleep(3600)
                except KeyboardInterrupt:
                    print()
    return 0


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Cleans up when the terminal is closed, too; not under nohup."""
    former = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    for number, handler in former.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


class _Demo:
    """What happens to the node, and what vitald reports."""

    def __init__(self, node: SimulatedNode, place: Path, port: int, pause: float) -> None:
        self.node, self.place, self.port, self.pause = node, place, port, pause

    def run_chapters(self) -> None:
        gpus = self.node.addresses
        hot, remapped, lost = (number % len(gpus) for number in (_HOT, _REMAPPED, _LOST))
        self._show_healthy_node()
        self._show_hot_gpu(hot)
        self._show_remapped_row(remapped)
        self._show_lost_gpu(lost)
        print()
        render.print_line(
            "That was all of it. On a node with GPUs: vitald run, or the service. None of this was"
            " real."
        )

    def _show_healthy_node(self) -> None:
        count = len(self.node.addresses)
        self._print_chapter(
            "1. A healthy node",
            f"{count} GPUs, simulated below the driver's library; the daemon is the real one.",
        )
        self._wait_until(_is_healthy)
        self._run_verb("gpus")
        self._run_verb("status")

    def _show_hot_gpu(self, gpu: int) -> None:
        name = f"gpu/{self.node.addresses[gpu]}"
        self._print_chapter(
            "2. A GPU runs hot",
            f"{name} has no margin left and slows down. Advice, and no reason to stop work:",
        )
        self.node.set_values(gpu, {"temp_c": 92, "margin_c": -1, "throttle": "0x68"})
        self._wait_until(_has_codes("nvml/temperature"))
        self._run_verb("status")
        self.node.set_values(gpu, {"temp_c": 41, "margin_c": 46, "throttle": "0x0"})
        self._wait_until(_is_healthy)
        print("    ... the fan is repaired, and the finding ends by itself.")

    def _show_remapped_row(self, gpu: int) -> None:
        address = self.node.addresses[gpu]
        self._print_chapter(
            "3. A row of memory is remapped",
            f"The kernel log reports Xid 63 on gpu/{address}, and NVML that the remap waits for a"
            " reset:",
        )
        self.node.set_values(gpu, {"remap": "0 1 1 0"})
        self._run_verb("drill", "xid", "63", "--device", address)
        self._wait_until(_has_codes("nvml/row_remap_pending"))
        self._run_verb("status")
        print("\n    Jobs may go on and begin; the reset waits for the next maintenance:")
        self._run_verb("check", "--for", "running")
        self._run_verb("check", "--for", "prolog")

    def _show_lost_gpu(self, gpu: int) -> None:
        address = self.node.addresses[gpu]
        self._print_chapter(
            "4. A GPU falls off the bus",
            f"gpu/{address}: Xid 79 in the kernel log, and NVML cannot reach it. One incident,"
            " reported once:",
        )
        self.node.lose(gpu)
        self._run_verb("drill", "xid", "79", "--device", address)
        self._wait_until(_has_codes("nvml/gpu_lost", "xid/79"))
        self._run_verb("status")
        self._run_verb("gpus")
        print()
        render.print_line(
            f"    rebootRequired as Prometheus sees it (http://127.0.0.1:{self.port}/metrics):"
            f" {self._read_metric('vitald_reboot_required')}"
        )

    def _print_chapter(self, title: str, text: str) -> None:
        if not title.startswith("1"):
            with WorkProgress(lambda: f"next: {title}"):
                time.sleep(self.pause)
        print(f"\n{render.colour_text(title, 'bold')}")
        render.print_line(f"    {text}")

    def _run_verb(self, *words: str) -> None:
        print(f"\n{render.colour_text('$ vitald ' + ' '.join(words), 'dim')}", flush=True)
        options = ["--socket", str(self.place), "--timeout", "5"]
        if words[0] == "drill":
            options += ["--config", str(self.place.parent.parent / "config.toml")]
        run_command([*words, *options])

    def _read_metric(self, name: str) -> str:
        """The sample as it is exposed."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return next((line for line in lines if line.startswith(f"{name} ")), f"{name} is not there")

    def _wait_until(self, is_reached: Callable[[schema.NodeStatus], bool]) -> None:
        until = time.monotonic() + _TIMEOUT_S
        request = argparse.Namespace(socket=self.place, timeout=5.0)
        with WorkProgress(lambda: "the daemon reads the node") as progress:
            while not is_reached(client.read_status(request)):
                if time.monotonic() > until:
                    with progress.give_way():
                        self._run_verb("status")
                    raise DemoFailed(
                        "the daemon does not report what it should: please report this, with the"
                        " output of vitald version"
                    )
                time.sleep(0.1)


def _is_healthy(status: schema.NodeStatus) -> bool:
    return status["status"] == "healthy"


def _has_codes(*codes: str) -> Callable[[schema.NodeStatus], bool]:
    """Whether all of these are reported: as findings, or in an incident."""

    def has_codes(status: schema.NodeStatus) -> bool:
        members = [member for incident in status["incidents"] for member in incident["members"]]
        reported = [*members, *status["findings"]]
        return {str(entry["code"]) for entry in reported} >= {*codes}

    return has_codes


@contextmanager
def _run_daemon(folder: Path, node: SimulatedNode) -> Iterator[Path]:
    """The real daemon on the simulated node."""
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
            while not _listens(place) and daemon.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            yield place
        except client.NoAnswer:
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=5)  # while it stops, the reason is not written yet
            output = log.read_text(errors="replace")
            raise DemoFailed(f"the demo's daemon does not answer; its output:\n{output}") from None
        finally:
            daemon.terminate()
            daemon.wait(timeout=10)


def _listens(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(place))
        except OSError:  # the daemon's output has the reason, if it ends
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
