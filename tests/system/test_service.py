"""The daemon as a service: reloading, stopping, one at a time, and systemd's notify protocol."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.conftest import require
from tests.harness import PYTHON, ROOT, Node, UnixConnection, free_port
from tests.system.lines import about, fresh_pci, wait_for_pid, xid
from tests.unit.test_lock import NOBODY, holding_all_it_can
from tests.waiting import WAIT_S, until

Make = Callable[..., Node]


@pytest.fixture(autouse=True)
def started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each daemon here is a program that was started, as a service is."""
    monkeypatch.setattr(Node, "warm", False)


def record(pid: int) -> str:
    """A line that says that a process wrote it."""
    return f"<12>{xid(pid)}"


@pytest.mark.core
def test_reload(make_node: Make) -> None:
    """userspace, overrides, profile and policy take effect at once, on what is open too."""
    node = make_node(userspace="ignore")
    node.start()
    pid = node.status()["pid"]
    node.write(record(1))
    wait_for_pid(node, 1)
    assert node.findings() == []

    node.configure('userspace = "ignore"', 'userspace = "confirmed"')
    assert node.reload()["applied"] == ["[kernel_log] userspace"]
    node.write(record(2))
    assert node.wait(lambda status: status["rebootRequired"])["action"] == "reboot_node"

    settings = node.config.read_text()
    node.config.write_text(f'{settings}[catalog]\nprofile = "hyperpod"\n')
    assert node.reload()["applied"] == ["[catalog] profile"]
    status = node.status()
    assert (status["profile"], status["replacementRequired"], status["rebootRequired"]) == (
        "hyperpod",
        True,
        False,
    )
    assert node.metric("vitald_replacement_required") == 1

    node.config.write_text(f'{settings}[catalog.overrides."xid/79"]\naction = "inspect"\n')
    assert sorted(node.reload()["applied"]) == ["[catalog] overrides", "[catalog] profile"]
    status = node.status()
    assert (status["status"], status["action"], status["profile"]) == (
        "degraded",
        "inspect",
        "nvidia",
    )

    node.config.write_text(settings.replace(str(node.port), str(free_port())))
    for _ in range(
        2
    ):  # told each time: it is not in force yet, however often the file was read since
        assert node.reload()["needs_restart"] == ["[metrics] listen"]
    assert node.metric("vitald_reboot_required") == 1
    assert node.status()["pid"] == pid


def test_a_bad_file_is_refused(shared_node: Node) -> None:
    """The old configuration stays, and the log says what is wrong: all of it, with lines."""
    node = shared_node
    node.write(xid(1))
    wait_for_pid(node, 1)
    before = node.status()
    for text, said in (
        (
            "[kernel_log]\nusrspace = 'ignore'\n[metric]\n",
            ["did you mean userspace?", "did you mean metrics?"],
        ),
        ("[kernel_log", ["not valid TOML"]),
        ('[catalog.overrides."xid/79"]\naction = "repair"\n', ["xid.79", "action"]),
    ):
        node.config.write_text(text)
        entry = node.reload()
        assert entry["event"] == "reload_refused"
        for part in said:
            assert part in str(entry["errors"])
    node.config.unlink()
    assert node.reload()["event"] == "reload_refused"
    after = node.status()
    assert [after[key] for key in ("status", "action", "profile", "pid")] == [
        before[key] for key in ("status", "action", "profile", "pid")
    ]
    node.config.write_text(node.settings)
    assert node.reload()["event"] == "reloaded"


def test_a_reload_is_answered(make_node: Make) -> None:
    """To who requests it, and in the status and the metrics until the file is corrected."""
    node = make_node(userspace="ignore")
    node.start()
    file, settings = node.config, node.config.read_text()

    def shown() -> list[str]:
        lines = node.cli("status").stdout.splitlines()
        return [line.strip() for line in lines if "configuration: " in line]

    def keys() -> list[float | None]:
        return [
            node.metric("vitald_config_refused"),
            node.metric('vitald_config_pending_keys{needs="reload"}'),
            node.metric('vitald_config_pending_keys{needs="restart"}'),
        ]

    done = node.cli("config", "reload")
    assert (done.returncode, done.stdout) == (0, f"{file}: in force\n")
    assert (shown(), keys()) == ([], [0, 0, 0])

    file.write_text(f"{settings}[policy]\ndevice_reset = 'yes'\n[hots]\n")
    last = len(settings.splitlines())
    done = node.cli("config", "reload", "--quiet")
    assert (done.returncode, done.stdout) == (78, "")
    reset, section, effect = done.stderr.splitlines()
    assert reset.startswith(f"{file}:{last + 2}: [policy] device_reset: expected true ")
    assert section == f"{file}:{last + 3}: [hots]: unknown section, did you mean host?"
    assert effect == "refused: the former configuration stays in force"
    (refused,) = shown()
    assert refused.startswith(f"configuration: REFUSED: {reset} (and others); the former one is in")
    assert (node.status()["configuration"]["errors"], keys()) == ([reset, section], [1, 0, 0])

    file.write_text(
        settings.replace(str(node.port), str(free_port())).replace('"ignore"', '"confirmed"')
        + "[kubernetes]\nprefix = 'health.example.com'\n"
    )
    done = node.cli("config", "reload")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            f"{file}: in force; changed: [kernel_log] userspace",
            "needs a restart: [metrics] listen: systemctl restart vitald",
            "needs a restart: [kubernetes] prefix: systemctl restart vitald-publish",
        ],
    )
    assert shown() == ["configuration: needs a restart: [metrics] listen: systemctl restart vitald"]
    assert keys() == [0, 0, 1]
    assert node.cli("config", "reload", "--quiet").stdout == ""


def test_many_hang_ups(shared_node: Node) -> None:
    """A burst of SIGHUP during a burst of lines: every line is judged once."""
    node, pci = shared_node, fresh_pci()
    assert node.process is not None
    for number in range(500):
        node.write(xid(number, pci=pci))
        if number % 10 == 0:
            node.process.send_signal(signal.SIGHUP)
    until(lambda: len(about(node.events(), pci)) == 500, "all lines")
    assert [finding["count"] for finding in about(node.findings(), pci)] == [500]


@contextmanager
def connected_clients(node: Node) -> Iterator[None]:
    """Watchers, idle clients and scrapers."""
    with ExitStack() as stack:
        for path in ("/v1/watch", "/v1/status"):
            for _ in range(10):
                client = UnixConnection(node.socket)
                stack.callback(client.close)
                client.request("GET", path)
                client.getresponse().read(1)
        for _ in range(10):
            idle = socket.socket(socket.AF_UNIX)
            stack.callback(idle.close)
            idle.connect(str(node.socket))
            stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
        yield


@pytest.mark.core
def test_stop(node: Node) -> None:
    """With clients connected, nothing is left behind or lost."""
    with connected_clients(node):
        node.write(xid(1))
        wait_for_pid(node, 1)
        process = node.process
        node.stop()
        assert process is not None
        assert process.returncode == 0
    assert [entry["event"] for entry in node.said("stopping", "stopped")] == ["stopping", "stopped"]
    assert not node.socket.exists()
    assert not list(node.state.glob("ledger.db-*"))
    assert "Traceback" not in node.errors.read_text()


def test_stop_before_it_is_ready(make_node: Make) -> None:
    """Asked to end while it still reads a long file."""
    node = make_node()
    node.write(*(xid(number, code=13) for number in range(20_000)))
    node.start(wait=False)
    until(lambda: node.said("starting"), "the start")
    until(lambda: node.answers("/healthz"), "the socket")
    node.stop()
    assert "Traceback" not in node.errors.read_text()
    node.start()
    wait_for_pid(node, 19_999)
    assert [finding["count"] for finding in node.findings()] == [20_000]


def second(node: Node, folder: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    """Try to run another daemon with the first one's configuration, but for what is changed."""
    text = node.settings.replace(str(node.port), str(free_port()))
    for old, new in changed.items():
        text = text.replace(f'{old} = "{getattr(node, old)}"', f'{old} = "{new}"')
    path = folder / "second.toml"
    path.write_text(text)
    command = [PYTHON, "-m", "vitald", "run", "--config", str(path)]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        pytest.fail("the second daemon runs beside the first")


def test_one_at_a_time(shared_node: Node, tmp_path: Path) -> None:
    """Another runtime folder does not make it another node, nor does another state folder."""
    for changed in ({}, {"runtime": str(tmp_path / "run")}, {"state": str(tmp_path / "state")}):
        done = second(shared_node, tmp_path, **changed)
        assert (
            done.returncode,
            "another vitald is running" in done.stderr,
            "Traceback" in done.stderr,
        ) == (69, True, False), changed
    assert shared_node.answers("/healthz")


def test_who_may_read_keeps_it_from_nothing(make_node: Make) -> None:
    """Another user, of the group that may read, holds a lock on all that he can open of the
    daemon's folders: it starts, and so it does again.
    """
    require(os.geteuid() == 0, "root")
    node = make_node()
    for _ in range(2):
        node.start()
        node.stop()
    for folder in (node.state, node.runtime):
        os.chown(folder, -1, NOBODY)
        folder.chmod(0o750)
    with holding_all_it_can([node.state, node.runtime]) as held:
        assert held >= 2
        node.start()
        assert second(node, node.folder).returncode == 69
        assert node.answers("/healthz")


def test_a_port_in_use(shared_node: Node, make_node: Make) -> None:
    """Told with the setting to change; what was begun is undone."""
    node = make_node()
    node.configure(str(node.port), str(shared_node.port))
    done = node.cli("run", "--config", str(node.config))
    assert (done.returncode, "Traceback" in done.stderr) == (69, False)
    for part in (f"127.0.0.1:{shared_node.port}", "[metrics] listen"):
        assert part in done.stderr
    assert not node.socket.exists()


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1))
        self.socket.settimeout(WAIT_S)
        self.heard: list[str] = []

    def wait(self, message: str, *, times: int = 1) -> None:
        """Until so many messages that begin so have come."""

        def is_heard() -> bool:
            if sum(line.startswith(message) for line in self.heard) >= times:
                return True
            self.heard += self.socket.recv(4096).decode().splitlines()
            return False

        until(is_heard, lambda: f"{message} among {set(self.heard)}")


@pytest.fixture(params=["path", "abstract"])
def notified(
    request: pytest.FixtureRequest, make_node: Make, tmp_path: Path
) -> Iterator[tuple[Node, Systemd]]:
    address = (
        str(tmp_path / "notify")
        if request.param == "path"
        else f"@vitald-test-{secrets.token_hex(8)}"
    )
    node = make_node()
    node.environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}
    manager = Systemd(address)
    yield node, manager
    manager.socket.close()


@pytest.mark.core
def test_notify(notified: tuple[Node, Systemd]) -> None:
    """Ready when it answers, a status line that follows the verdict, a watchdog that is fed, and a
    word at the end.
    """
    node, manager = notified
    node.start(wait=False)
    manager.wait("READY=1")
    assert node.answers("/healthz")
    assert node.status()["sources"][0]["state"] == "ok"
    manager.wait("STATUS=healthy")
    manager.wait("WATCHDOG=1", times=manager.heard.count("WATCHDOG=1") + 2)
    node.write(xid(1))
    manager.wait("STATUS=unhealthy, 1 open findings: gpu/0000:65:00.0: GPU has fallen off the bus")
    assert node.process is not None
    node.process.send_signal(signal.SIGINT)
    manager.wait("STOPPING=1")
    assert node.process.wait(WAIT_S) == 0


@pytest.mark.kmsg
def test_the_kernel_log_as_standard_input(make_node: Make) -> None:
    """As the unit gives it: opened by who may, read by a daemon that may not, and what it starts
    does not get it.
    """
    require(os.geteuid() == 0 and shutil.which("setpriv"), "root and setpriv")
    require(Path("/proc/sys/kernel/dmesg_restrict").read_text() == "1\n", "kernel.dmesg_restrict=1")
    for given, state in (("</dev/kmsg", "ok"), ("</dev/null", "failed")):
        node = make_node(kernel_log="kmsg", userspace="ignore")
        node.command = [
            "sh",
            "-c",
            f'exec setpriv --bounding-set=-syslog,-sys_admin "$@" {given}',
            "sh",
            *node.command,
        ]
        for _ in range(2):  # the second time too it is read from the oldest record on
            node.start()
            node.wait(lambda status: status["sources"][0]["state"] == state)
            assert node.process is not None
            assert Path(f"/proc/{node.process.pid}/fd/0").resolve() == Path("/dev/null")
            node.stop()


@pytest.mark.parametrize(
    ("name", "most"), [("vitald", 16), ("vitald-recover", 20), ("vitald-publish", 11)]
)
def test_how_exposed_the_units_are(name: str, most: int) -> None:
    """In tenths. What is left is said in the unit, line by line. A booted machine says the same:
    tests/booted.
    """
    require(shutil.which("systemd-analyze"), "systemd-analyze")
    unit = ROOT / f"systemd/{name}.service"
    done = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--offline=true",
            f"--threshold={most}",
            "--json=short",
            "--no-pager",
            str(unit),
        ],
        capture_output=True,
        text=True,
    )
    if "unrecognized option" in done.stderr:
        require(False, "systemd 250 or later")
    assert done.returncode == 0, done.stdout
    said = " ".join(line for line in unit.read_text().splitlines() if line.startswith("#"))
    for row in json.loads(done.stdout):
        setting = row["name"].partition("=")[0].partition("/")[0]
        words = (
            ("AF_INET", "AF_UNIX", "AF_NETLINK")
            if setting == "RestrictAddressFamilies"
            else (setting,)
        )
        explained = any(word in said for word in words) or f"\n{setting}=" in unit.read_text()
        assert row["set"] in (True, None) or explained, (
            f"{row['name']} is not explained"
        )  # None: of no account here
