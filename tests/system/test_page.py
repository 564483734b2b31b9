"""`vitald page` and `vitald report --html` of a real daemon, read by http.client and Chromium."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser import find_chromium, list_violations, open_tab, start_browser
from tests.conftest import require
from tests.harness import PYTHON, ROOT, Node
from tests.pages import LISTENS, ServedPage, announce_drill, serve_page
from tests.system.lines import remap, xid
from tests.waiting import WAIT_S, until

IMAGE = "<img src=x onerror=alert(1)>"
RIGHT_TO_LEFT = "a\u202eb\u2066c"
LONG = "L" * 700


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
    with serve_page(troubled.socket, troubled.folder) as page:
        yield page


@pytest.mark.core
def test_the_page_shows_what_is_wrong(troubled: Node, served: ServedPage) -> None:
    status, headers, text = served.request()
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
    assert served.token not in text  # so that a saved or printed page does not have it


def test_a_head_has_no_body(served: ServedPage) -> None:
    status, headers, text = served.request(method="HEAD")
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
    found, answered, text = served.request(path, method, **headers)
    assert found == status, text
    assert "GPU" not in text and "Traceback" not in text
    assert answered["X-Content-Type-Options"] == "nosniff"


def test_a_token_that_is_nearly_right(served: ServedPage) -> None:
    last = "A" if served.token[-1] != "A" else "B"
    for path in (f"/{served.token[:-1]}{last}/", f"/{served.token[:-1]}/", f"/{served.token}A/"):
        assert served.request(path)[0] == 403
    assert len(served.token) >= 32


def test_the_token_is_printed_once(troubled: Node, tmp_path: Path) -> None:
    with serve_page(troubled.socket, tmp_path) as page:
        assert page.request()[0] == 200
        assert page.request(f"{page.path}x")[0] == 403
        assert page.request(f"{page.path}?a=" + "x" * 9000)[0] == 400
        code = page.stop(signal.SIGINT)
        assert page.process.stdout is not None
        assert (code, page.process.stdout.read()) == (0, "")
        assert page.token not in page.errors.read_text()


def test_it_listens_on_the_loopback_only(served: ServedPage) -> None:
    assert served.list_sockets(LISTENS) == [f"0100007F:{served.port:04X}"]


def test_silent_clients_do_not_keep_others_out(served: ServedPage) -> None:
    silent = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(40)]
    try:
        assert served.request()[0] == 200
    finally:
        for each in silent:
            each.close()


def test_the_daemon_goes_and_comes_back(tmp_path: Path) -> None:
    with Node(tmp_path / "node") as node, serve_page(node.socket, tmp_path) as page:
        assert page.request()[0] == 200
        node.kill()
        status, headers, text = page.request()
        assert status == 503 and "text/html" in headers["Content-Type"]
        assert "No usable answer from vitald" in text and "systemctl status vitald" in text
        assert '<meta http-equiv="refresh"' in text  # so that it shows the daemon's return
        node.start()
        assert page.request()[0] == 200


def test_a_daemon_that_hangs(tmp_path: Path) -> None:
    with Node(tmp_path / "node") as node:
        with serve_page(node.socket, tmp_path, "--timeout", "1") as page, node.frozen():
            assert page.request()[0] == 503
            client = subprocess.Popen(
                [sys.executable, "-c", f"import urllib.request as u; u.urlopen('{page.url}')"],
                stderr=subprocess.DEVNULL,
            )
            until(lambda: page.has_client(), "the client")
            assert page.stop(signal.SIGINT) == 0  # also while a page is being made
            client.wait(WAIT_S)
        until(lambda: node.answers("/healthz"), "the daemon to go on")


@pytest.mark.parametrize(
    "answer", ["{}", "[]", '{"status": "healthy", "reasons": []}', "x", "\0" * 100]
)
def test_something_that_is_no_daemon(tmp_path: Path, answer: str) -> None:
    place = tmp_path / "other.sock"
    body = f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\n\r\n{answer}".encode()
    code = (
        "import socket, sys\n"
        "with socket.socket(socket.AF_UNIX) as other:\n"
        "    other.bind(sys.argv[1]); other.listen(); print('listening', flush=True)\n"
        "    while True:\n"
        "        peer = other.accept()[0]; peer.recv(65536); peer.sendall(eval(sys.argv[2]))\n"
        "        peer.close()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(place), repr(body)], stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == b"listening\n"
        with serve_page(place, tmp_path) as page:
            status, _, text = page.request()
            assert status == 503 and "Unknown" in text
    finally:
        other.kill()
        other.wait()


def test_a_port_in_use(troubled: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = troubled.cli("page", "--port", str(port))
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == (
        f"vitald: cannot listen on 127.0.0.1:{port}: Address already in use; choose another port"
        " with --port\n"
    )


# --- vitald report --html


def test_a_page_for_a_ticket(troubled: Node, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    command = ("report", "--html", "--output", str(path), "--config", str(troubled.config))
    done = troubled.cli(*command)
    assert done.returncode == 0, done
    assert done.stdout.startswith(f"{path}  ") and "look through it" in done.stdout
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert "GPU has fallen off the bus" in text and IMAGE not in text
    assert "refresh" not in text and "href" not in text
    again = troubled.cli(*command)
    assert again.returncode == 69 and "--force" in again.stderr


def test_secrets_of_the_configuration_are_taken_out(tmp_path: Path) -> None:
    secret = "hunter2<Tr0ub4dor>"
    with Node(tmp_path / "node") as node:
        node.write(xid(1).replace("python3", secret))
        node.wait(lambda status: status["openFindings"] == 1)
        config = tmp_path / "config.toml"
        config.write_text(f'{node.settings}\n[site]\npassword = "{secret}"\n')
        for where in (str(tmp_path), "-"):
            done = node.cli("report", "--html", "--output", where, "--config", str(config))
            assert done.returncode == 0, done
        texts = [done.stdout, *(path.read_text() for path in tmp_path.glob("vitald-*.html"))]
        assert len(texts) == 2
        for text in texts:
            assert "name=[redacted]" in text and "hunter2" not in text


def test_a_page_without_the_daemon() -> None:
    command = ["report", "--html", "--output", "-", "--socket", "/nonexistent/x.sock"]
    done = subprocess.run(
        [PYTHON, "-m", "vitald", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0
    assert "No usable answer from vitald" in done.stdout
    assert "without all that the daemon knows: no socket at /nonexistent/x.sock" in done.stderr


def test_a_configuration_that_cannot_be_read_is_named(troubled: Node, tmp_path: Path) -> None:
    """Its secrets are unknown, so that they may be on the page."""
    done = troubled.cli("report", "--html", "-o", "-", "--config", str(tmp_path / "none.toml"))
    assert done.returncode == 0 and "GPU has fallen off the bus" in done.stdout
    assert (
        "  without a search for the configuration's secrets: "
        f"{tmp_path}/none.toml: No such file or directory\n"
    ) in done.stderr


# --- in a real browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    require(find_chromium(), "Chromium (apt-get install chromium)")
    with start_browser() as started:
        yield started


@pytest.fixture(scope="module")
def addresses(
    tmp_path_factory: pytest.TempPathFactory, served: ServedPage
) -> Iterator[dict[str, str]]:
    """The address of a page for each kind of state."""
    folder = tmp_path_factory.mktemp("pages")
    with ExitStack() as stack:
        nodes = {
            name: stack.enter_context(Node(folder / name))
            for name in ("healthy", "degraded", "drill")
        }
        announce_drill(nodes["drill"])
        nodes["degraded"].write(remap(99, pci="0000:30:00"))
        nodes["degraded"].wait(lambda status: status["status"] == "degraded")
        sockets = {name: node.socket for name, node in nodes.items()}
        sockets["away"] = folder / "no.sock"
        pages = {"fault": served.url}
        for name, path in sockets.items():
            (folder / f"{name}-page").mkdir()
            page = stack.enter_context(serve_page(path, folder / f"{name}-page"))
            pages[name] = page.url
        yield pages


STATES = ("fault", "healthy", "degraded", "drill", "away")
WIDTHS = (360, 1280)


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_text_is_shown_as_text(browser: Browser, served: ServedPage, width: int) -> None:
    with open_tab(browser, "about:blank", width) as tab:
        requested: list[str] = []
        logged: list[str] = []
        tab.on("request", lambda request: requested.append(request.url))
        tab.on("console", lambda message: logged.append(message.text))
        tab.goto(served.url)
        text = tab.inner_text("body")
        assert requested == [served.url]
        assert IMAGE in text
        assert "\u202e" not in text and "\u2066" not in text
        assert tab.evaluate("document.images.length + document.scripts.length") == 0
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert logged == []  # Chromium logs what the policy blocks


def test_the_policy_stops_a_script_and_a_request(browser: Browser, served: ServedPage) -> None:
    """If something got through all the same."""
    with open_tab(browser, served.url) as tab:
        logged: list[str] = []
        tab.on("console", lambda message: logged.append(message.text))
        tab.evaluate(
            "document.body.insertAdjacentHTML('beforeend', \"<img src='/x' onerror='alert(1)'>"
            "<p id=bad style='color:red' onclick='document.title=1'>bad</p>\")"
        )
        tab.click("#bad")
        kinds = ("img-src", "style-src", "script-src")
        # Each call lets Playwright report what was logged meanwhile.
        until(lambda: tab.title() and all(kind in " ".join(logged) for kind in kinds))
        assert tab.title() != "1"
        colour = tab.evaluate("getComputedStyle(document.querySelector('#bad')).color")
        assert colour != "rgb(255, 0, 0)"


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(
    browser: Browser, addresses: dict[str, str], state: str, scheme: str
) -> None:
    """Paused: a page that refreshes by itself is allowed because it can be paused, which axe
    cannot know.
    """
    for width in WIDTHS:
        with open_tab(browser, f"{addresses[state]}?refresh=off", width, scheme) as tab:
            assert list_violations(tab) == []
            assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_axe_would_find_something(browser: Browser, served: ServedPage) -> None:
    with open_tab(browser, f"{served.url}?refresh=off") as tab:
        tab.evaluate("document.querySelector('.lead').insertAdjacentHTML('afterend', '<h5></h5>')")
        tab.evaluate("document.documentElement.removeAttribute('lang')")
        found = " ".join(list_violations(tab))
        assert "html-has-lang" in found and "empty-heading" in found


def test_the_page_is_loaded_again_until_it_is_paused(browser: Browser, served: ServedPage) -> None:
    with open_tab(browser, served.url) as tab:
        tab.wait_for_event("load", timeout=WAIT_S * 1000)
        tab.click("text=Pause")
        assert "Paused" in tab.inner_text(".clock")
        assert tab.locator("meta[http-equiv=refresh]").count() == 0


def test_the_span_of_the_timeline_is_chosen(browser: Browser, served: ServedPage) -> None:
    with open_tab(browser, f"{served.url}?refresh=off") as tab:
        assert "the last 24 hours" in tab.inner_text("section:has(#history)")
        tab.click("text=Month")
        assert "the last 28 days" in tab.inner_text("section:has(#history)")
        assert tab.inner_text("[aria-current]") == "Month"
        assert "Paused" in tab.inner_text(".clock")  # stays so
        tab.click("text=Resume")
        assert "the last 28 days" in tab.inner_text("section:has(#history)")
        assert tab.locator("meta[http-equiv=refresh]").count() == 1
        assert tab.locator(".timeline .bar").count() == 4


def test_a_drill_is_marked(browser: Browser, addresses: dict[str, str]) -> None:
    with open_tab(browser, addresses["drill"]) as tab:
        text = tab.inner_text("body")
        assert re.search(r"DRILL\s+Every open finding is simulated", text)
        cards = tab.locator(".card")
        assert cards.count() == tab.locator(".card .drill-mark").count() == 1


def test_it_can_be_printed(browser: Browser, served: ServedPage) -> None:
    with open_tab(browser, served.url) as tab:
        assert tab.pdf().startswith(b"%PDF")
        tab.emulate_media(media="print")
        band = tab.evaluate("getComputedStyle(document.querySelector('.verdict')).backgroundColor")
        assert band == "rgb(255, 255, 255)"
        assert not tab.is_visible("text=Pause")
