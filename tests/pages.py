"""
`vitald page` in a process, and nodes in the states that it shows. The pictures of the docs:

    python -m tests.pages        writes docs/images/page-*.png (needs chromium and pngquant)
"""

from __future__ import annotations

import http.client
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from tests.browser import open_tab, start_browser, take_picture
from tests.harness import PYTHON, ROOT, Node
from tests.system.lines import xid
from tests.system.nvml import as_if_real
from tests.waiting import WAIT_S
from vitald.simulator.simulated_node import SimulatedNode

DRILL = "NVRM: Xid (PCI:0000:17:00): 79, pid=77, name=vitald-drill, GPU has fallen off the bus."
CONNECTED, LISTENS = "01", "0A"  # net/tcp_states.h
PICTURES = ROOT / "docs/images"


class ServedPage:
    """`vitald page` in a process, on any free port."""

    def __init__(self, path: Path, errors: Path, *options: str) -> None:
        self.errors = errors
        command = [PYTHON, "-m", "vitald", "page", "--socket", str(path), "--port", "0", *options]
        with errors.open("wb") as file:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=file, text=True
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://"), errors.read_text()
        parts = urlsplit(self.url)
        self.port, self.path = parts.port or 0, parts.path
        self.token = self.path.strip("/")

    def request(
        self, path: str | None = None, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and text of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, self.path if path is None else path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def list_sockets(self, state: str) -> list[str]:
        """The local addresses of the sockets on its port in a state, as /proc/net/tcp has them."""
        rows = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in Path("/proc/net", table).read_text().splitlines()[1:]
        ]
        return [row[1] for row in rows if row[1].endswith(f":{self.port:04X}") and row[3] == state]

    def has_client(self) -> bool:
        return bool(self.list_sockets(CONNECTED))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


@contextmanager
def serve_page(path: Path, folder: Path, *options: str) -> Iterator[ServedPage]:
    """The page of the daemon on the socket at `path`; `folder` is for its standard error."""
    page = ServedPage(path, folder / "page.err", *options)
    try:
        yield page
    finally:
        if page.process.poll() is None:
            page.stop()
        assert "Traceback" not in page.errors.read_text()


def announce_drill(node: Node) -> None:
    """A drill on a node, and the line that it announces."""
    status, answer = node.request("POST", "/v1/drills", {"line": DRILL})
    assert status in (200, 201), answer
    node.write(DRILL)
    node.wait(lambda found: found["simulated"])


# --- the pictures of the docs


class Picture(NamedTuple):
    state: str
    name: str
    width: int = 1100
    scheme: Literal["light", "dark"] = "light"
    media: Literal["screen", "print"] = "screen"


# What each state's page is headed.
WORDS = {"fault": "Unhealthy", "healthy": "Healthy", "drill": "Unhealthy", "unknown": "Unknown"}
TAKEN = (
    Picture("fault", "page-fault"),
    Picture("fault", "page-fault-dark", scheme="dark"),
    Picture("fault", "page-fault-narrow", width=390),
    Picture("fault", "page-fault-printed", width=794, media="print"),
    Picture("healthy", "page-healthy"),
    Picture("drill", "page-drill"),
    Picture("unknown", "page-unknown"),
)


def report_job(node: Node, event: str, job: str, **more: object) -> None:
    """As the scheduler's prolog and epilog report it."""
    body = {"event": event, "job": job, "user": "alice", "uid": 1000, **more}
    assert node.request("POST", "/v1/jobs", body)[0] == 200


def bring_about(state: str, node: Node, gpus: SimulatedNode) -> None:
    """A state on a node of eight GPUs that is healthy."""
    report_job(node, "begin", "4710")
    report_job(node, "end", "4710", exitCode=0, signal=0)
    if state != "unknown":
        report_job(node, "begin", "4711")
    if state == "fault":
        node.write(xid(4242, 31, gpus.addresses[5].removesuffix(".0"), "MMU Fault"))
        node.wait(lambda status: status["openFindings"] == 1)
        (number,) = [finding["id"] for finding in node.findings()]
        assert node.cli("clear", str(number), "--reason", "fixed in train.py").returncode == 0
        gpus.lose(3)
        node.write(xid(4242, pci=gpus.addresses[3].removesuffix(".0")))
        node.wait(lambda status: status["rebootConfirmed"])
        report_job(node, "end", "4711", exitCode=1, signal=0)
    elif state == "drill":
        announce_drill(node)
    elif state == "unknown":
        assert node.cli("release", "--reason", "driver upgrade").returncode == 0
        node.wait(lambda status: status["status"] == "unknown")


def take_pictures() -> None:
    PICTURES.mkdir(exist_ok=True)
    with ExitStack() as stack:
        browser = stack.enter_context(start_browser())
        urls = {}
        for state in WORDS:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="page-")))
            gpus = as_if_real(SimulatedNode(folder / "gpus", "h100"))
            node = stack.enter_context(Node(folder / "node", gpus=gpus))
            node.wait(lambda status: status["status"] == "healthy")
            bring_about(state, node, gpus)
            page = stack.enter_context(serve_page(node.socket, folder))
            urls[state] = f"{page.url}?refresh=off"
        for picture in TAKEN:
            with open_tab(browser, urls[picture.state], picture.width, picture.scheme) as tab:
                assert tab.inner_text("h1") == WORDS[picture.state]
                tab.emulate_media(media=picture.media)
                file = PICTURES / f"{picture.name}.png"
                take_picture(tab, file)
                subprocess.run(["pngquant", "--force", "--output", file, "32", file], check=True)


if __name__ == "__main__":
    take_pictures()
