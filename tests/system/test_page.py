"""
`vitald page` and `vitald report --html` on a real daemon, asked by http.client and by Chromium.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser import Browser, fetch_axe, find_browser, start_browser
from tests.conftest import require
from tests.harness import PYTHON, ROOT, Node, free_port, is_listening
from tests.pace import patient
from tests.system.lines import remap, xid

IMAGE = "<img src=x onerror=alert(1)>"
RIGHT_TO_LEFT = "a\u202eb\u2066c"
LONG = "L" * 700
DRILL = "NVRM: Xid (PCI:0000:17:00): 79, pid=77, name=vitald-drill, GPU has fallen off the bus."


class ServedPage:
    """`vitald page` in a process."""

    def __init__(self, path: Path, errors: Path, *options: str) -> None:
        self.errors = errors
        command = [PYTHON, "-m", "vitald", "page", "--socket", str(path), *options]
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

    def ask(
        self, path: str | None = None, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(20))
        try:
            connection.request(method, self.path if path is None else path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Exit code, and the seconds that it took."""
        begun = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(patient(10))
        return code, time.monotonic() - begun


@contextmanager
def serve(path: Path, folder: Path, *options: str) -> Iterator[ServedPage]:
    page = ServedPage(path, folder / "page.err", "--listen", f"127.0.0.1:{free_port()}", *options)
    try:
        yield page
    finally:
        if page.process.poll() is None:
            page.stop()
        assert "Traceback" not in page.errors.read_text()


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose kernel log was written by a user who knows HTML."""
    with Node(tmp_path_factory.mktemp("node")) as node:
        for bus, name in enumerate((IMAGE, RIGHT_TO_LEFT, LONG), start=0x20):
            node.write(xid(bus, pci=f"0000:{bus:02x}:00").replace("python3", name))
        node.write(remap(99, pci="0000:30:00"))
        node.wait(lambda status: status["openFindings"] == 4)
        yield node


@pytest.fixture(scope="module")
def served(troubled: Node) -> Iterator[ServedPage]:
    with serve(troubled.socket, troubled.folder) as page:
        yield page


@pytest.mark.smoke
def test_the_page_says_what_is_wrong(troubled: Node, served: ServedPage) -> None:
    status, headers, text = served.ask()
    assert status == 200
    assert "Unhealthy" in text and "GPU has fallen off the bus" in text
    assert "Reboot required" in text and "vitald why" in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text and IMAGE not in text
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Server"].startswith("vitald/")
    assert served.token not in text  # a page that is saved or printed gives nothing away


def test_a_head_has_no_body(served: ServedPage) -> None:
    status, headers, text = served.ask(method="HEAD")
    assert (status, text) == (200, "") and int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/", "GET", {}, 403),
        ("/favicon.ico", "GET", {}, 403),
        ("/%ff%fe/", "GET", {}, 403),
        ("/x/", "GET", {}, 403),
        (None, "POST", {}, 405),
        (None, "PUT", {}, 405),
        (None, "OPTIONS", {}, 405),
        (None, "GET", {"Host": "evil.example"}, 421),
        (None, "GET", {"Host": "127.0.0.1.evil.example:80"}, 421),
    ],
)
def test_what_is_refused(
    served: ServedPage, path: str | None, method: str, headers: dict[str, str], status: int
) -> None:
    found, answered, text = served.ask(path, method, **headers)
    assert found == status, text
    assert "GPU" not in text and "Traceback" not in text
    assert answered["X-Content-Type-Options"] == "nosniff"


def test_a_token_that_is_nearly_right(served: ServedPage) -> None:
    last = "A" if served.token[-1] != "A" else "B"
    for path in (f"/{served.token[:-1]}{last}/", f"/{served.token[:-1]}/", f"/{served.token}A/"):
        assert served.ask(path)[0] == 403
    assert len(served.token) >= 32


def test_the_token_is_printed_once(troubled: Node, tmp_path: Path) -> None:
    with serve(troubled.socket, tmp_path) as page:
        assert page.ask()[0] == 200
        assert page.ask(f"{page.path}x")[0] == 403
        assert page.ask(f"{page.path}?a=" + "x" * 9000)[0] == 400
        code, seconds = page.stop(signal.SIGINT)
        assert page.process.stdout is not None
        assert (code, page.process.stdout.read()) == (0, "")
        assert seconds < patient(2.0)
        assert page.token not in page.errors.read_text()


def test_clients_that_say_nothing_do_not_keep_others_out(served: ServedPage) -> None:
    silent = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(40)]
    try:
        assert served.ask()[0] == 200
    finally:
        for one in silent:
            one.close()


def test_the_daemon_goes_and_comes_back(tmp_path: Path) -> None:
    with Node(tmp_path / "node") as node, serve(node.socket, tmp_path) as page:
        assert page.ask()[0] == 200
        node.kill()
        status, headers, text = page.ask()
        assert status == 503 and "text/html" in headers["Content-Type"]
        assert "vitald does not answer" in text and "systemctl status vitald" in text
        assert '<meta http-equiv="refresh"' in text  # it is seen when the daemon is back
        node.start()
        assert page.ask()[0] == 200


def test_a_daemon_that_hangs(tmp_path: Path) -> None:
    with Node(tmp_path / "node") as node, serve(node.socket, tmp_path, "--timeout", "1") as page:
        with node.frozen():
            assert page.ask()[0] == 503
            thread = subprocess.Popen(
                [sys.executable, "-c", f"import urllib.request as u; u.urlopen('{page.url}')"],
                stderr=subprocess.DEVNULL,
            )
            code, seconds = page.stop(signal.SIGINT)  # also while a page is being made
            assert code == 0 and seconds < patient(2.0)
            thread.wait(patient(10))
        node.until(lambda: node.answers("/healthz"), 10.0, "the daemon to go on")


@pytest.mark.parametrize(
    "answer", ["{}", "[]", '{"status": "healthy", "reasons": []}', "x", "\0" * 100]
)
def test_something_that_is_no_daemon(tmp_path: Path, answer: str) -> None:
    place = tmp_path / "other.sock"
    body = f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\n\r\n{answer}".encode()
    code = (
        "import socket, sys\n"
        "with socket.socket(socket.AF_UNIX) as one:\n"
        "    one.bind(sys.argv[1]); one.listen()\n"
        "    while True:\n"
        "        peer = one.accept()[0]; peer.recv(65536); peer.sendall(eval(sys.argv[2]))\n"
        "        peer.close()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(place), repr(body)])
    try:
        Node.until(lambda: is_listening(place), 10.0, "the other's socket")
        with serve(place, tmp_path) as page:
            status, _, text = page.ask()
            assert status == 503 and "Unknown" in text
    finally:
        other.kill()
        other.wait()


def test_a_port_in_use(troubled: Node) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = troubled.cli("page", "--listen", listen)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == (
        f"vitald: cannot listen on {listen}: Address already in use; choose another with --listen\n"
    )


def test_a_public_page_warns(troubled: Node, tmp_path: Path) -> None:
    page = ServedPage(
        troubled.socket, tmp_path / "err", "--public", "--listen", f"0.0.0.0:{free_port()}"
    )
    try:
        assert page.ask(Host=f"{socket.gethostname()}:1")[0] == 200
        assert page.ask(Host=socket.getfqdn())[0] == 200
        assert page.url.startswith(f"http://{socket.getfqdn()}:")  # and not http://0.0.0.0
        assert page.ask(Host="evil.example")[0] == 421
        assert "unencrypted" in page.errors.read_text()
    finally:
        page.stop()


# --- vitald report --html


def test_a_page_for_a_ticket(troubled: Node, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    done = troubled.cli("report", "--html", str(path), "--config", str(troubled.config))
    assert done.returncode == 0, done
    assert done.stdout.startswith(f"{path}  ") and "look through it" in done.stdout
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert "GPU has fallen off the bus" in text and IMAGE not in text
    assert "refresh" not in text and "href" not in text
    again = troubled.cli("report", "--html", str(path), "--config", str(troubled.config))
    assert again.returncode == 69 and "--force" in again.stderr
    both = troubled.cli("report", "--html", "--output", str(tmp_path))
    assert both.returncode == 2


def test_secrets_of_the_configuration_are_taken_out(tmp_path: Path) -> None:
    secret = "hunter2<Tr0ub4dor>"
    with Node(tmp_path / "node") as node:
        node.write(xid(1).replace("python3", secret))
        node.wait(lambda status: status["openFindings"] == 1)
        config = tmp_path / "config.toml"
        config.write_text(f'{node.settings}\n[site]\npassword = "{secret}"\n')
        for where in (str(tmp_path), "-"):
            done = node.cli("report", "--html", where, "--config", str(config))
            assert done.returncode == 0, done
        texts = [done.stdout, *(path.read_text() for path in tmp_path.glob("vitald-*.html"))]
        assert len(texts) == 2
        for text in texts:
            assert "name=[redacted]" in text and "hunter2" not in text


def test_a_page_without_the_daemon(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, "-m", "vitald", "report", "--html", "-", "--socket", "/nonexistent/x.sock"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(30),
    )
    assert done.returncode == 0
    assert "vitald does not answer" in done.stdout and "without all that" in done.stderr


# --- in a real browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    require(find_browser(), "Chromium (apt-get install chromium chromium-driver)")
    with start_browser() as one:
        yield one


@pytest.fixture(scope="module")
def axe() -> Path:
    script = fetch_axe()
    require(script, "axe-core from the npm registry")
    assert script is not None
    return script


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, served: ServedPage) -> Iterator[dict[str, str]]:
    """The addresses of a page for each kind of state."""
    folder = tmp_path_factory.mktemp("pages")
    with Node(folder / "healthy") as healthy, Node(folder / "drill") as drill:
        status, answer = drill.request("POST", "/v1/injections", {"line": DRILL})
        assert status in (200, 201), answer
        drill.write(DRILL)
        drill.wait(lambda found: found["simulated"])
        for name in ("a", "b", "c"):
            (folder / name).mkdir()
        with (
            serve(healthy.socket, folder / "a") as well,
            serve(drill.socket, folder / "b") as drilled,
            serve(folder / "no.sock", folder / "c") as away,
        ):
            yield {
                "fault": served.url,
                "healthy": well.url,
                "drill": drilled.url,
                "away": away.url,
            }


STATES = ("fault", "healthy", "drill", "away")


@pytest.mark.parametrize("width", [360, 1280])
def test_hostile_text_is_shown_as_text(browser: Browser, served: ServedPage, width: int) -> None:
    browser.open(served.url, width)
    assert [url for url in browser.list_requests() if "favicon" not in url] == [served.url]
    text = browser.run("document.body.innerText")
    assert IMAGE in text
    assert "\u202e" not in text and "\u2066" not in text
    assert browser.run("document.images.length + document.scripts.length") == 0
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.read_log("browser") == []  # what the policy blocks is said there


def test_the_policy_stops_a_script_and_a_request(browser: Browser, served: ServedPage) -> None:
    """Were something to get through all the same: neither script nor request."""
    browser.open(served.url)
    browser.run(
        "document.body.insertAdjacentHTML('beforeend',"
        " '<img src=/x onerror=\"document.title=1\"><p style=color:red onclick=1>')"
    )
    browser.run("new Promise(done => setTimeout(done, 300))")
    assert browser.run("document.title") != "1"
    assert not [url for url in browser.list_requests() if url.endswith("/x")]
    assert "Content Security Policy" in json.dumps(browser.read_log("browser"))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(
    browser: Browser, pages: dict[str, str], axe: Path, state: str, dark: bool
) -> None:
    """Paused: refreshing by itself is allowed because it can be paused, which axe cannot know."""
    for width in (360, 1280):
        browser.open(f"{pages[state]}?refresh=off", width, dark=dark)
        assert browser.check_with_axe(axe) == []
        assert browser.run("document.documentElement.scrollWidth") <= width


def test_axe_would_find_something(browser: Browser, served: ServedPage, axe: Path) -> None:
    browser.open(f"{served.url}?refresh=off")
    browser.run("document.querySelector('.lead').insertAdjacentHTML('afterend', '<h5></h5>'), 0")
    browser.run("document.documentElement.removeAttribute('lang')")
    found = " ".join(browser.check_with_axe(axe))
    assert "html-has-lang" in found and "empty-heading" in found


def test_the_page_is_loaded_again(browser: Browser, served: ServedPage) -> None:
    browser.open(served.url)
    browser.run("document.title = 'old'")
    Node.until(lambda: browser.run("document.title") != "old", 30.0, "the page to be loaded again")
    browser.run("document.querySelector('.clock a').click()")
    Node.until(
        lambda: browser.run("document.querySelector('.clock').innerText").count("Paused"),
        10.0,
        "the paused page",
    )
    assert browser.run("document.querySelectorAll('meta[http-equiv=refresh]').length") == 0


def test_a_drill_is_marked(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["drill"])
    assert re.search(
        r"DRILL\s+Every open finding is simulated", browser.run("document.body.innerText")
    )
    marks = browser.run("document.querySelectorAll('.card .drill-mark').length")
    assert marks == browser.run("document.querySelectorAll('.card').length") > 0


def test_it_can_be_printed(browser: Browser, served: ServedPage, tmp_path: Path) -> None:
    browser.open(served.url)
    browser.print_page(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    browser.tell("Emulation.setEmulatedMedia", media="print")
    colour = browser.run("getComputedStyle(document.querySelector('.verdict')).backgroundColor")
    assert colour == "rgb(255, 255, 255)"
