"""From a fault to a reboot: the real daemon asks, `vitald recovery run` as root decides and runs a
program that only says that it ran.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import require
from tests.harness import PYTHON, ROOT, Json, Node
from tests.system.lines import REPLACE_FOR_64, vouched, wait_for_pid, xid
from tests.system.nvml import as_if_real
from tests.system.people import NOBODY
from tests.system.test_slurm import HOST, Slurm
from tests.waiting import WAIT_S, until
from vitald.cli.client import find_owners
from vitald.cli.recovery.run import query_daemon
from vitald.model.words import Repair
from vitald.recovery.attempt import RecoveryAttempt
from vitald.recovery.decision_log import read_last_record, read_records
from vitald.recovery.inputs import read_config
from vitald.recovery.recovery_request import (
    FILE,
    FindingRef,
    Request,
    parse_request,
    render_request,
)
from vitald.simulator.simulated_node import SimulatedNode

GPU = "gpu/0000:65:00.0"
REMAP_FAILED = "Row Remapper Error: (0x0000000001aa5555) - All reserved rows for bank are remapped"


@pytest.fixture(autouse=True)
def _root() -> None:
    require(os.geteuid() == 0, "root")


class Site:
    """A node's own programs and what root remembers of it, on a disk: what is in memory is
    refused.
    """

    def __init__(
        self,
        folder: Path,
        *,
        after: str = "200ms",
        drain: str = "",
        delay: str = "off",
        min_uptime: str = "off",
        more: str = "",
    ) -> None:
        self.folder = folder
        self.state = folder / "recover"
        self.ran = folder / "ran"
        self.kill_switch, self.maintenance = folder / "no-recovery", folder / "maintenance"
        self.ran.touch()
        for name in ("drain", "reboot", "replace"):
            self.script(name, "")
        self.settings = f"""
[recovery]
mode = "automatic"
after = "{after}"
min_uptime = "{min_uptime}"
drain = {drain or json.dumps([str(folder / "drain")])}
replace = ["{folder}/replace"]
reboot = ["{folder}/reboot", "-f"]
brake_delay = "{delay}"
kill_switch = "{self.kill_switch}"
maintenance = "{self.maintenance}"
state = "{self.state}"
{more}"""

    def script(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.ran}\n{text}\n')
        path.chmod(0o755)

    @property
    def done(self) -> list[str]:
        return self.ran.read_text().split("\n")[:-1]


@pytest.fixture
def site() -> Iterator[Callable[..., Site]]:
    folder = Path(tempfile.mkdtemp(prefix="vitald-recovery-", dir="/var/tmp"))
    yield lambda **settings: Site(folder, **settings)
    shutil.rmtree(folder)


def quiet(node: Node, here: Site) -> Node:
    """With a /proc without processes: other tests may run jobs of Slurm's on this machine."""
    processes = here.folder / "proc"
    processes.mkdir()
    (processes / "sys").symlink_to("/proc/sys")
    node.settings = node.settings.replace("[paths]", f'[paths]\nprocfs = "{processes}"')
    node.config.write_text(node.settings)
    return node


def vitald(
    *arguments: str, config: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-m", "vitald", *arguments, "--config", str(config)]
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, **(environment or {})},
    )


def recover(config: Path, *arguments: str, **environment: str) -> Json:
    """The decision, from root's log."""
    done = vitald("recovery", "run", *arguments, config=config, environment=environment)
    told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert told and "Traceback" not in done.stderr, done
    return {**told[-1], "code": done.returncode}


def request_of(node: Node) -> Request:
    path = node.runtime / FILE
    until(path.exists, "a request")
    return parse_request(path.read_bytes())


def begin_requesting(make_node: Callable[..., Node], here: Site) -> Node:
    """A node whose daemon requests a reboot."""
    node = quiet(make_node(extra=here.settings), here)
    node.start()
    node.write(vouched(xid(1)))
    request_of(node)
    return node


def test_roots_log_has_priorities_in_the_journal(tmp_path: Path) -> None:
    """Though root takes nothing else over from the environment."""
    config = tmp_path / "config.toml"
    config.touch()
    config.chmod(0o666)  # refused
    journald, ours = socket.socketpair()
    with journald, ours:
        found = os.fstat(ours.fileno())
        subprocess.run(
            [PYTHON, "-m", "vitald", "recovery", "run", "--config", str(config)],
            cwd=ROOT,
            stderr=ours,
            timeout=WAIT_S,
            env={**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"},
        )
        assert journald.recv(4096).startswith(b"<3>recovery_refused ")


@pytest.mark.core
def test_once_and_no_more(site: Callable[..., Site], make_node: Callable[..., Node]) -> None:
    """A fault, a request, drained, rebooted; the second time the budget refuses. All of it can be
    seen by people and by Prometheus.
    """
    here = site()
    node = quiet(make_node(extra=here.settings), here)
    node.start()
    assert node.metric('vitald_recovery_requested{repair="reboot"}') == 0
    shown = node.status()["recovery"]
    assert (shown["mode"], shown["request"]) == ("automatic", None)
    assert recover(node.config)["why"] == "there is no request"

    node.write(vouched(xid(1)))
    asked = node.wait(lambda status: status["recovery"]["request"])["recovery"]["request"]
    request = request_of(node)
    assert (request.id, request.kind, request.causes, request.requester) == (
        asked["id"],
        Repair.REBOOT,
        ((GPU, "xid/79"),),
        f"vitald {node.status()['pid']}",
    )
    assert node.metric('vitald_recovery_requested{repair="reboot"}') == 1
    assert "recovery: a reboot" in node.cli("status").stdout

    dry = vitald("recovery", "run", "--dry-run", config=node.config)
    assert (
        dry.stdout == "would keep new work away, and then reboot the node once nothing runs here\n"
    )
    assert (here.done, here.state.exists()) == ([], False), "and nothing was done"

    first = recover(node.config)
    assert (first["step"], first["outcome"], first["code"]) == ("act", "ordered", 0)
    assert here.done == ["drain ", "reboot -f"]
    for _ in range(2):
        second = recover(node.config)
        assert (second["step"], second["level"]) == ("refused", "error")
        assert second["checks"] == ["effect", "cause", "budget"]
        assert "xid/79 of gpu/0000:65:00.0" in str(second["why"])
    assert here.done == ["drain ", "reboot -f"]

    shown = json.loads(vitald("recovery", "status", "--json", config=node.config).stdout)
    assert [(one["step"], one["outcome"], one["times"]) for one in shown["decisions"]] == [
        ("refused", "", 2),
        ("act", "ordered", 1),
    ]
    assert (shown["budget"]["reboots"]["used"], shown["request"]["id"]) == (1, request.id)
    said = vitald("recovery", "status", config=node.config).stdout
    for part in (
        "recovery automatic",
        "1 of 1 reboots in a day",
        "refused to reboot the node: a reboot was begun 0 min ago, and the node is still in the",
        "(2 times)",
        "reboot the node: ordered, and the node is still in the same boot",
    ):
        assert part in said
    until(
        lambda: node.metric('vitald_recovery_refused{check="effect"}') == 1,
        "the refusal to be read",
    )
    assert "and the node is still in the same boot" in node.cli("status").stdout

    [found] = node.findings()
    assert (
        node.request("POST", f"/v1/findings/{found['id']}/clear", {"reason": "rebooted"})[0] == 200
    )
    until(lambda: not (node.runtime / FILE).exists(), "the request to be withdrawn")
    assert node.status()["recovery"]["request"] is None


@pytest.mark.core
def test_a_dry_run_does_nothing_where_nothing_is_in_the_way(
    site: Callable[..., Site], make_node: Callable[..., Node]
) -> None:
    here = site(drain='"none"')
    node = begin_requesting(make_node, here)
    dry = vitald("recovery", "run", "--dry-run", config=node.config)
    assert (dry.returncode, here.done, here.state.exists()) == (0, [], False)
    assert recover(node.config)["outcome"] == "ordered"
    assert here.done == ["reboot -f"]


@pytest.mark.core
def test_a_crash_does_not_forget_a_reboot(
    site: Callable[..., Site], make_node: Callable[..., Node]
) -> None:
    """Killed in the middle of it: it is in the action log, and reported as begun."""
    here = site()
    here.script("reboot", "kill -9 $PPID")
    node = begin_requesting(make_node, here)
    assert vitald("recovery", "run", config=node.config).returncode == -9
    here.script("reboot", "")
    again = recover(node.config)
    assert (again["step"], again["checks"]) == ("refused", ["effect", "cause", "budget"])
    assert (
        here.done == ["drain ", "reboot -f"]
        and "reboot the node: begun" in vitald("recovery", "status", config=node.config).stdout
    )


@pytest.mark.core
def test_a_reboot_that_fails_is_said_and_counted(
    site: Callable[..., Site], make_node: Callable[..., Node]
) -> None:
    here = site()
    here.script("reboot", "echo 'no init daemon' >&2; exit 1")
    node = begin_requesting(make_node, here)
    failed = recover(node.config)
    assert (failed["code"], failed["outcome"]) == (
        69,
        f"failed: {here.folder}/reboot failed: exit 1: no init daemon",
    )
    assert recover(node.config)["step"] == "refused"


NOT_STARTED = {
    "missing": ("", "there is no such program"),
    "without its interpreter": ("#!/nonexistent\n", "cannot be run: No such file or directory"),
}


def test_a_dry_run_without_a_request_finds_what_is_missing(
    site: Callable[..., Site], make_node: Callable[..., Node]
) -> None:
    here = site()
    node = make_node(extra=here.settings)
    idle = "would do nothing: there is no request\n"
    assert vitald("recovery", "run", "--dry-run", config=node.config).stdout == idle
    program = here.folder / "reboot"
    program.unlink()
    assert vitald("recovery", "run", "--dry-run", config=node.config).stdout == (
        f"{idle}would refuse to reboot the node: [recovery] reboot: {program}: there is no such"
        " program\n"
    )


@pytest.mark.parametrize("how", NOT_STARTED)
@pytest.mark.parametrize("action", ["reboot", "replace"])
@pytest.mark.core
def test_an_action_that_cannot_start_does_not_count(
    site: Callable[..., Site], make_node: Callable[..., Node], action: str, how: str
) -> None:
    """What is known before is refused before the node is drained; the rest is taken back."""
    here = site()
    node = quiet(make_node(extra=here.settings + REPLACE_FOR_64), here)
    node.start()
    message = {"code": 64, "message": REMAP_FAILED} if action == "replace" else {}
    node.write(vouched(xid(1, **message)))
    request_of(node)
    program, (text, trouble) = here.folder / action, NOT_STARTED[how]
    if text:
        program.write_text(text)
    else:
        program.unlink()
    for _ in range(2):
        decision = recover(node.config)
        if text:
            assert (decision["step"], decision["code"]) == ("act", 69)
            assert decision["outcome"] == f"failed: {program} {trouble}"
        else:
            assert (decision["step"], decision["checks"]) == ("refused", ["means"])
            assert decision["why"] == f"[recovery] {action}: {program}: {trouble}"
    assert here.done == (["drain ", "drain "] if text else [])
    here.script(action, "")
    assert recover(node.config)["outcome"] == "ordered"


def test_where_hyperpod_reboots_nodes_root_does_not(
    site: Callable[..., Site], make_node: Callable[..., Node]
) -> None:
    here = site(more="[slurm]\nhyperpod = true")
    node = begin_requesting(make_node, here)
    assert recover(node.config)["why"] == "[slurm] hyperpod = true: HyperPod reboots this node"
    assert here.done == []


@pytest.mark.core
def test_replacement(site: Callable[..., Site], make_node: Callable[..., Node]) -> None:
    """It outranks the reboot, and a reboot's budget is not spent for it."""
    here = site()
    node = quiet(make_node(extra=here.settings + REPLACE_FOR_64), here)
    node.start()
    node.write(vouched(xid(2, pci="0000:9b:00")), vouched(xid(1, code=64, message=REMAP_FAILED)))
    node.wait(lambda status: (status["recovery"]["request"] or {}).get("action") == "replace")
    assert recover(node.config)["outcome"] == "ordered"
    assert recover(node.config)["checks"] == ["cause", "budget"]
    assert here.done == ["drain ", "replace "]


@pytest.mark.core
def test_a_drill_never_acts(site: Callable[..., Site], make_node: Callable[..., Node]) -> None:
    """Not asked for by the daemon; and refused by root where somebody writes the request for it."""
    here = site()
    node = quiet(make_node(extra=here.settings), here)
    node.start()
    line = xid(7)
    assert node.request("POST", "/v1/drills", {"line": line})[0] == 201
    node.write(f"<12>{line}")
    found = node.wait(lambda status: status["rebootRequired"])["findings"][0]
    assert found["simulated"] is True
    forge(node, replace(handmade(node), findings=(finding_ref(found),)))
    refused = recover(node.config)
    assert (refused["checks"], here.done) == (["daemon", "findings"], [])
    assert "is a drill's" in str(refused["why"])

    # A real fault beside it is asked for, and the drill, which has stood for longer, is not.
    node.write(vouched(xid(8, pci="0000:9b:00")))
    until(
        lambda: request_of(node).causes == (("gpu/0000:9b:00.0", "xid/79"),),
        "the real one to be asked for",
    )


@pytest.mark.core
def test_what_still_runs_is_waited_for(
    site: Callable[..., Site], make_node: Callable[..., Node]
) -> None:
    """A job that was announced; and what the drain program says."""
    here = site()
    here.script(
        "drain",
        "[ -e free ] || { echo 2 jobs; exit 75; }".replace("free", str(here.folder / "free")),
    )
    node = quiet(make_node(extra=here.settings), here)
    node.start()
    assert (
        node.request("POST", "/v1/jobs", {"event": "begin", "job": "4711", "user": "alice"})[0]
        == 200
    )
    node.write(vouched(xid(1)))
    request_of(node)
    waits = recover(node.config)
    assert (waits["step"], waits["why"]) == (
        "wait",
        f"{here.folder}/drain says: 2 jobs; job 4711 of alice still run here",
    )
    (here.folder / "free").touch()
    assert recover(node.config)["why"] == "job 4711 of alice still run here"
    assert "reboot -f" not in here.done
    assert node.request("POST", "/v1/jobs", {"event": "end", "job": "4711"})[0] == 200
    assert recover(node.config)["outcome"] == "ordered"
    assert here.done[-1] == "reboot -f"


@pytest.mark.core
def test_a_persons_diagnostic_is_waited_for(
    site: Callable[..., Site], make_node: Callable[..., Node]
) -> None:
    here = site()
    ends = here.folder / "ends"
    slow = f"while [ ! -e {ends} ]; do sleep 0.05; done"
    here.script("slow", slow)
    check = f'[checks.burn_in]\nrun = ["{here.folder}/slow"]\nevery = "off"\n'
    node = quiet(make_node(extra=here.settings + check), here)
    node.start()
    began = node.cli("diag", "run", "--check", "burn_in", "--no-wait", "--reason", "ticket 4711")
    assert began.returncode == 0, began
    until(lambda: "slow " in here.done, "the diagnostic to run")
    node.write(vouched(xid(1)))
    request_of(node)
    waits = recover(node.config)
    assert (waits["step"], waits["checks"]) == ("wait", ["diagnostic"])
    assert re.fullmatch(
        r"a diagnostic runs: burn_in, for root \(uid 0\), pid [0-9]+ \(ticket 4711\)",
        str(waits["why"]),
    )
    assert "ticket 4711" in vitald("recovery", "status", config=node.config).stdout
    ends.touch()
    until(lambda: not node.get("/v1/diagnostics")["active"], "its end")
    assert recover(node.config)["outcome"] == "ordered"


@pytest.mark.core
def test_a_process_that_nobody_announced_is_waited_for(
    site: Callable[..., Site], make_node: Callable[..., Node]
) -> None:
    """Until it ends, or was killed: stuck in the driver, it ends only with the reboot."""
    here = site(drain='"none"')
    node = begin_requesting(make_node, here)
    device, process = here.folder / "dev/nvidia0", here.folder / "proc/4711"
    for folder in (device.parent, process / "fd"):
        folder.mkdir(parents=True)
    device.symlink_to("/dev/null")
    (process / "fd/5").symlink_to(device)
    stat = "4711 (python3) D 1 1 1 0 -1 0 " + "0 " * 10 + "1 0 100 " + "0 " * 8
    (process / "stat").write_text(f"{stat}0 0\n")
    waits = recover(node.config)
    assert (waits["step"], waits["checks"], waits["why"]) == (
        "wait",
        ["devices"],
        "python3 (pid 4711) has nvidia0 open",
    )
    assert here.done == []
    until(lambda: 'vitald_recovery_waits{check="devices"} 1.0' in node.metrics(), "the metric")
    shown = node.cli("status").stdout
    assert re.search(
        r"waiting at [0-9:]+ \([^)]*\): python3 \(pid 4711\) has nvidia0 open", shown
    ), shown
    (process / "stat").write_text(f"{stat}256 0\n")
    assert recover(node.config)["outcome"] == "ordered"


@pytest.mark.core
def test_a_node_that_was_just_booted_is_left_alone(
    site: Callable[..., Site], make_node: Callable[..., Node]
) -> None:
    here = site(min_uptime="90000d")
    node = begin_requesting(make_node, here)
    assert (recover(node.config)["checks"], here.done) == (["uptime"], [])
    node.configure('min_uptime = "90000d"', 'min_uptime = "off"')
    assert recover(node.config)["outcome"] == "ordered"


@pytest.mark.parametrize("when", ["before", "while it drains"])
@pytest.mark.core
def test_the_kill_switch(
    site: Callable[..., Site], make_node: Callable[..., Node], when: str
) -> None:
    here = site()
    node = begin_requesting(make_node, here)
    if when == "before":
        here.kill_switch.touch()
    else:
        here.script("drain", f"touch {here.kill_switch}")
    refused = recover(node.config)
    assert (refused["step"], refused["checks"]) == ("refused", ["kill_switch"])
    assert (
        f"stopped    kill switch: on ({here.kill_switch} exists)"
        in vitald("recovery", "status", config=node.config).stdout
    )
    here.kill_switch.unlink()
    here.maintenance.symlink_to("/nonexistent")
    here.script("drain", "")
    assert recover(node.config)["checks"] == ["maintenance"]
    here.maintenance.unlink()
    assert recover(node.config)["outcome"] == "ordered"


# --- a second witness


@pytest.mark.core
def test_what_nobody_confirms_is_left_to_a_person(
    site: Callable[..., Site], make_node: Callable[..., Node], tmp_path: Path
) -> None:
    """A process's record, and the kernel's text: unfit, and not rebooted for. A GPU that NVML
    loses, too: one reboot, for that one.
    """
    require(
        shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)"
    )
    here, gpus = site(), as_if_real(SimulatedNode(tmp_path / "gpus", "h100", 3))
    node = quiet(make_node(extra=here.settings, gpus=gpus, userspace="unconfirmed"), here)
    node.start()
    node.wait(lambda status: status["status"] == "healthy")
    forged, text, lost = (f"gpu/{address}" for address in gpus.addresses)
    slots = [address.removesuffix(".0") for address in gpus.addresses]
    node.write(f"<12>{xid(1, pci=slots[0])}", xid(2, pci=slots[1]))
    status = node.wait(lambda status: status["openFindings"] == 2)
    assert (
        status["status"],
        status["rebootRequired"],
        status["rebootConfirmed"],
        status["simulated"],
    ) == ("unhealthy", True, False, False)
    assert (node.metric("vitald_reboot_required"), node.metric("vitald_reboot_confirmed")) == (1, 0)
    assert node.cli("check", "--for", "prolog").returncode == 20
    shown = node.cli("status").stdout
    assert "reboot required (unconfirmed)" in shown
    assert (
        "written by a process, unconfirmed: " in shown
        and "the kernel log alone, unconfirmed: " in shown
    )

    found = {one["component"]: one for one in node.findings()}
    assert {name: one["writtenByProcess"] for name, one in found.items()} == {
        forged: True,
        text: False,
    }
    said = vitald("recovery", "status", config=node.config).stdout
    assert (
        f"for a second witness of #{found[forged]['id']} xid/79 of {forged} (a process wrote it): "
        in said
    )
    assert (
        f"for a second witness of #{found[text]['id']} xid/79 of {text}: " in said
        and "nvml" in said
    )
    for one in found.values():  # whoever writes the request himself
        forge(node, handmade(node, one))
        refused = recover(node.config)
        assert (refused["checks"], here.done) == (["daemon", "findings"], [])
    (node.runtime / FILE).unlink()

    node.write(xid(3, pci=slots[2]))
    gpus.lose(2)
    request = request_of(node)
    assert request.causes == ((lost, "xid/79"),)
    [confirmed] = [one for one in node.findings() if one["confirmed"]]
    assert (confirmed["component"], str(confirmed["confirmedBy"]).startswith("nvml")) == (
        lost,
        True,
    )
    assert (
        node.status()["rebootConfirmed"] is True
        and "reboot required (confirmed)" in node.cli("status").stdout
    )
    assert recover(node.config)["outcome"] == "ordered"
    assert recover(node.config)["checks"] == ["effect", "cause", "budget"]
    assert here.done == ["drain ", "reboot -f"]


# --- what is not a request of the daemon's, or holds no more


@pytest.fixture(scope="module")
def sick() -> Iterator[tuple[Node, Site]]:
    """A node with a fault that would be asked for in an hour: the requests are ours."""
    require(os.geteuid() == 0, "root")
    folder = Path(tempfile.mkdtemp(prefix="vitald-recovery-", dir="/var/tmp"))
    here = Site(folder, after="1h")
    with quiet(Node(folder / "node", extra=here.settings), here) as node:
        node.write(vouched(xid(1)), vouched(xid(2, pci="0000:9b:00")))
        wait_for_pid(node, 2)
        [other] = [one for one in node.findings() if one["component"] == "gpu/0000:9b:00.0"]
        assert (
            node.request("POST", f"/v1/findings/{other['id']}/clear", {"reason": "moved"})[0] == 200
        )
        yield node, here
    shutil.rmtree(folder)


@pytest.fixture
def ready(sick: tuple[Node, Site]) -> Iterator[tuple[Node, Site]]:
    """As if nothing had been asked for or done."""
    node, here = sick
    here.ran.write_text("")
    shutil.rmtree(here.state, ignore_errors=True)
    yield node, here
    with suppress(FileNotFoundError):
        (node.runtime / FILE).unlink()
    node.config.write_text(node.settings)


def finding_ref(found: Json) -> FindingRef:
    return FindingRef(
        id=cast("int", found["id"]),
        component=str(found["component"]),
        code=str(found["code"]),
        since=0.0,
        action=str(found["action"]),
        count=1,
        raw=str(found["raw"]),
    )


def handmade(node: Node, found: Json | None = None) -> Request:
    """As the daemon would write it now."""
    found = found or next(one for one in node.findings() if one["component"] == GPU)
    return Request(
        id="0123456789abcdef",
        boot_id=str(node.status()["bootId"]),
        time=time.time(),
        uptime=time.clock_gettime(time.CLOCK_BOOTTIME),
        kind=Repair.REBOOT,
        host="h",
        requester="vitald 1",
        status="unhealthy",
        reasons=(),
        findings=(finding_ref(found),),
    )


def forge(node: Node, request: Request | bytes) -> Path:
    path = node.runtime / FILE
    path.parent.mkdir(mode=0o750, exist_ok=True)
    with suppress(FileNotFoundError):
        path.unlink()
    path.write_bytes(request if isinstance(request, bytes) else render_request(request))
    path.chmod(0o640)
    return path


@pytest.mark.core
def test_a_sound_request_is_granted(ready: tuple[Node, Site]) -> None:
    """Else all that is refused below would be refused for another reason."""
    node, here = ready
    forge(node, handmade(node))
    assert recover(node.config)["outcome"] == "ordered"
    assert here.done == ["drain ", "reboot -f"]


def _make_old(one: Request) -> Request:
    return replace(one, uptime=one.uptime - 301)


@pytest.mark.parametrize(
    ("change", "check"),
    [(_make_old, "age"), (lambda one: render_request(one) + b" " * 200_000, "request")],
    ids=["old", "too long"],
)
def test_a_request_that_does_not_hold(
    ready: tuple[Node, Site], change: Callable[[Request], Request | bytes], check: str
) -> None:
    """tests/unit/test_recovery.py has every check and every form that is refused."""
    node, here = ready
    forge(node, change(handmade(node)))
    refused = recover(node.config)
    assert (refused["step"], refused["code"], here.done) == ("refused", 0, [])
    assert check in cast("list[str]", refused["checks"])


def _of_nobody(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


def _anybodys_folder(path: Path) -> None:
    path.parent.chmod(0o777)


@pytest.mark.parametrize("change", [_of_nobody, _anybodys_folder])
def test_a_request_that_is_not_the_daemons(
    ready: tuple[Node, Site], change: Callable[[Path], None]
) -> None:
    """tests/unit/test_recovery_files.py has every kind of file that is refused."""
    node, here = ready
    path = forge(node, handmade(node))
    try:
        change(path)
        refused = recover(node.config)
        assert (refused["step"], here.done) == ("refused", [])
        assert "the request does not count: " in str(refused["why"])
    finally:
        shutil.rmtree(path.parent)


def test_a_configuration_that_is_anybodys_is_nobodys(ready: tuple[Node, Site]) -> None:
    node, here = ready
    forge(node, handmade(node))
    for change in (
        lambda: node.config.chmod(0o666),
        lambda: (node.config.chmod(0o644), os.chown(node.config, NOBODY, 0)),
    ):
        change()
        _refuse_configuration(node.config, f"{node.config}: ")
        assert here.done == []
    os.chown(node.config, 0, 0)
    node.config.write_text(node.settings + "[recovery2]\n")
    _refuse_configuration(node.config, "[recovery2]: unknown section")


def _refuse_configuration(config: Path, reason: str) -> None:
    """Nothing in it counts, the format of the log neither: the line is text."""
    done = vitald("recovery", "run", config=config)
    assert done.returncode == 78, done
    assert " error    recovery_refused why=" in done.stderr and reason in done.stderr, done


@pytest.mark.parametrize("written", [b"", None])
def test_an_action_log_that_cannot_be_read_stops_everything(
    ready: tuple[Node, Site], written: bytes | None
) -> None:
    """None: a link in its place."""
    node, here = ready
    forge(node, handmade(node))
    here.state.mkdir(mode=0o750)
    if written is None:
        (here.state / "actions.json").symlink_to("/dev/null")
    else:
        (here.state / "actions.json").write_bytes(written)
    refused = recover(node.config)
    assert (refused["checks"], here.done) == (["action_log"], [])


def test_an_action_log_that_would_not_survive_stops_everything(ready: tuple[Node, Site]) -> None:
    """On a node whose disk is its memory, each boot would be the first."""
    node, here = ready
    forge(node, handmade(node))
    memory = Path(tempfile.mkdtemp(prefix="vitald-", dir="/dev/shm"))
    try:
        node.configure(f'state = "{here.state}"', f'state = "{memory}/recover"')
        refused = recover(node.config)
        assert (refused["checks"], here.done) == (["action_log"], [])
        assert "tmpfs" in str(refused["why"])
    finally:
        shutil.rmtree(memory)


def test_a_folder_that_is_anybodys_cannot_be_used(ready: tuple[Node, Site]) -> None:
    node, here = ready
    forge(node, handmade(node))
    here.state.mkdir()
    here.state.chmod(0o777)
    refused = recover(node.config)
    assert (refused["code"], here.done) == (69, [])


def test_a_socket_that_is_not_the_daemons(ready: tuple[Node, Site]) -> None:
    """Whoever answers there would say what is open."""
    node, here = ready
    forge(node, handmade(node))
    os.chown(node.socket, NOBODY, -1)
    try:
        refused = recover(node.config)
    finally:
        os.chown(node.socket, 0, -1)
    assert (refused["checks"], here.done) == (["daemon"], [])


@pytest.mark.core
def test_findings_that_do_not_fit_into_an_answer_are_not_known(
    make_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may be at work on one of them."""
    node = make_node()
    node.start()
    node.write(vouched(xid(1)), vouched(xid(2, pci="0000:9b:00")))
    node.wait(lambda status: status["openFindings"] == 2)
    config = read_config(node.config)
    for most, trouble in ((2, ""), (1, "more than 1 findings are open, and not all are known")):
        monkeypatch.setattr("vitald.cli.recovery.run.MAX_PAGE", most)
        report = query_daemon(config)
        assert (report.state is None, report.trouble) == (bool(trouble), trouble)


@pytest.mark.core
def test_somebody_at_work_stops_it(ready: tuple[Node, Site]) -> None:
    node, here = ready
    one = handmade(node)
    forge(node, one)
    with node.frozen():
        assert recover(node.config)["checks"] == ["daemon"]
    assert (
        node.request(
            "POST", f"/v1/findings/{one.findings[0].id}/remedy", {"reason": "reseating it"}
        )[0]
        == 200
    )
    forge(node, handmade(node))
    assert recover(node.config)["checks"] == ["remedy"]
    node.write(vouched(xid(3)))  # it came back: open again
    wait_for_pid(node, 3)
    node.configure('mode = "automatic"', 'mode = "none"')
    forge(node, handmade(node))
    assert recover(node.config)["checks"] == ["mode"]
    assert "none: no automatic recovery" in vitald("recovery", "status", config=node.config).stdout
    assert here.done == []


# --- the brake


@pytest.mark.core
def test_what_the_brake_says_is_seen(
    site: Callable[..., Site], make_node: Callable[..., Node], tmp_path: Path
) -> None:
    """In status, metric, and the request's record; the node is left as it is."""
    here = site(more=f'brake = ["{tmp_path}/gate"]')
    gate = tmp_path / "gate"

    def let(code: int) -> None:
        gate.write_text(f'#!/bin/sh\necho "$VITALD_ACTION: two racks are out"\nexit {code}\n')
        gate.chmod(0o755)

    let(75)
    node = quiet(make_node(extra=here.settings), here)
    node.start()
    assert node.status()["recovery"]["brake"] == f"asks {gate}"
    node.write(vouched(xid(1)))
    request = request_of(node)
    why = f"{gate} failed: exit 75: reboot: two racks are out"
    for _ in range(2):
        refused = recover(node.config)
        assert (refused["step"], refused["checks"], refused["why"]) == ("refused", ["brake"], why)
    assert here.done == []
    decision = node.wait(lambda status: status["recovery"]["request"]["decision"])
    assert (
        decision["recovery"]["request"]["decision"].items()
        >= {
            "step": "refused",
            "checks": ["brake"],
            "why": why,
        }.items()
    )
    assert node.metric('vitald_recovery_refused{check="brake"}') == 1
    shown = node.cli("status").stdout
    assert re.search(rf"refused at [0-9:]+ \([^)]*\): {re.escape(why)}", shown), shown
    shown = json.loads(vitald("recovery", "status", "--json", config=node.config).stdout)
    [record] = shown["decisions"]
    assert (record["request"], record["checks"], record["times"]) == (request.id, ["brake"], 2)
    assert f"refused to reboot the node: {why} (2 times)" in (
        vitald("recovery", "status", config=node.config).stdout
    )

    let(0)
    assert recover(node.config)["outcome"] == "ordered"
    until(
        lambda: 'vitald_recovery_refused{check="brake"}' not in node.metrics(),
        "the refusal to be over",
    )


@pytest.mark.core
def test_a_refusal_after_the_drain_is_said(
    site: Callable[..., Site], make_node: Callable[..., Node], tmp_path: Path
) -> None:
    """Another node was quicker while this one was drained, by a program that cannot undo that."""
    gate = tmp_path / "gate"
    gate.write_text(f"#!/bin/sh\n[ ! -e {tmp_path}/drained ] || exit 1\n")
    gate.chmod(0o755)
    here = site(more=f'brake = ["{gate}"]')
    here.script("drain", f"touch {tmp_path}/drained")
    node = begin_requesting(make_node, here)
    done = vitald("recovery", "run", config=node.config)
    assert "recovery_not_undone" in done.stderr and "cannot undo what it did" in done.stderr
    [record] = json.loads(vitald("recovery", "status", "--json", config=node.config).stdout)[
        "decisions"
    ]
    assert (record["step"], record["checks"], here.done) == ("refused", ["brake"], ["drain "])


@pytest.mark.core
def test_before_it_takes_the_node_it_waits_at_random(
    site: Callable[..., Site], make_node: Callable[..., Node]
) -> None:
    """What was known before the wait counts for nothing after it."""
    here = site(delay="10m")
    node = begin_requesting(make_node, here)
    slept: list[float] = []

    def attempt(meanwhile: Callable[[], object]) -> tuple[Json, list[Json]]:
        """The record during the wait, and those after it."""
        during: list[Json] = []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            during.extend(read_records(here.state)[-1:])
            assert read_last_record(here.state, "another") is None
            meanwhile()

        made = RecoveryAttempt(
            read_config(node.config),
            dry_run=False,
            owners=find_owners(),
            reader_group=0,
            query_daemon=query_daemon,
            find_device_users=lambda config, pid: [],
            sleep=sleep,
        )
        made.run()
        return during[0], read_records(here.state)

    waits, after = attempt(here.kill_switch.touch)
    assert (waits["step"], waits["checks"]) == ("wait", ["delay"])
    assert str(waits["why"]).startswith("a random delay of ")
    assert [record["checks"] for record in after] == [["kill_switch"]], "instead of the wait"
    here.kill_switch.unlink()
    seen: list[Json | None] = []
    _, after = attempt(lambda: seen.append(read_last_record(here.state, str(waits["request"]))))
    assert seen[0] is not None and seen[0]["checks"] == ["kill_switch"], "until it is decided anew"
    assert [record["step"] for record in after] == ["refused", "act"]
    assert here.done == ["drain ", "reboot -f"]
    assert len(set(slept)) == 2 and all(0 <= seconds <= 600 for seconds in slept)


@pytest.mark.core
def test_without_a_scheduler_to_ask_it_says_that_it_has_no_brake(
    site: Callable[..., Site], make_node: Callable[..., Node]
) -> None:
    here = site(drain='"none"')
    node = quiet(make_node(extra=here.settings), here)
    node.start()
    for said in (
        node.cli("status").stdout,
        vitald("recovery", "status", config=node.config).stdout,
    ):
        assert "nothing limits how many nodes are taken at once" in said
    until(lambda: "recovery_without_brake" in node.errors.read_text(), "the daemon to say so")


# --- with a real Slurm


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    programs = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch")
    require(
        os.geteuid() == 0 and all(map(shutil.which, programs)),
        "root and Slurm (apt-get install slurmd slurmctld slurm-client munge)",
    )
    with Path("/tmp/vitald-tests-slurm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = Slurm(tmp_path_factory.mktemp("slurm"))
        try:
            made.start()
            yield made
            made.clean()  # a job outlives its slurmd
        finally:
            made.stop()


@pytest.mark.core
@pytest.mark.usefixtures("whole_machine")
def test_slurm_is_drained_first_and_a_running_job_holds_it_back(
    slurm: Slurm, site: Callable[..., Site], make_node: Callable[..., Node]
) -> None:
    here = site(drain='"slurm"', more=f'node = "{HOST}"\n[slurm]\n{slurm.settings}\n')
    here.script("reboot", f"scontrol show node {HOST} | grep -o 'State=[A-Z+]*' >>{here.ran}")
    node = make_node(extra=here.settings)
    node.start()
    environment = {"SLURM_CONF": slurm.environment["SLURM_CONF"]}
    slurm.config.unlink(missing_ok=True)
    slurm.config.symlink_to(node.config)
    go = slurm.folder / "go"
    job = slurm.submit(f"while [ ! -e {go} ]; do sleep 0.05; done")
    slurm.wait_job(job, "RUNNING")
    until(lambda: node.get("/v1/jobs")["running"], "the job to be told")
    node.write(vouched(xid(1)))
    request_of(node)

    waits = recover(node.config, **environment)
    assert waits["step"] == "wait" and f"job {job} of root" in str(waits["why"])
    known = slurm.known()
    assert (
        known.held
        and known.reason == f"vitald: {GPU}: GPU has fallen off the bus (xid/79): reboot the node"
    )
    assert slurm.state(job).startswith("RUNNING")

    go.touch()
    slurm.wait_job(job, "COMPLETED")
    slurm.wait(
        lambda known: "COMPLETING" not in known.states and "IDLE" in known.states,
        "the node to be free",
    )
    until(lambda: not node.get("/v1/jobs")["running"], "the job's end")
    assert recover(node.config, **environment)["outcome"] == "ordered"
    assert here.done == ["reboot -f", "State=IDLE+DRAIN"]


@pytest.fixture
def requesting(
    slurm: Slurm, site: Callable[..., Site], make_node: Callable[..., Node]
) -> Iterator[tuple[Node, Site]]:
    """A node in Slurm whose daemon requests a reboot."""
    here = site(drain='"slurm"', more=f'node = "{HOST}"\n[slurm]\n{slurm.settings}\n')
    node = make_node(extra=here.settings)
    node.start()
    slurm.config.unlink(missing_ok=True)
    slurm.config.symlink_to(node.config)
    node.write(vouched(xid(1)))
    request_of(node)
    yield node, here
    slurm.clean()


@pytest.mark.parametrize(
    ("drained", "ordered"),
    [
        (False, "update nodename={host} state=drain reason='ticket 4711'"),
        (False, "reboot nextstate=RESUME reason='kernel update' {host}"),
        (True, "update nodename={host} reason='{ours}; bob: RMA 4711, do not touch'"),
        (True, "reboot ASAP {host}"),
    ],
)
@pytest.mark.core
def test_what_an_administrator_ordered_in_slurm_is_left_alone(
    slurm: Slurm, requesting: tuple[Node, Site], drained: bool, ordered: str
) -> None:
    """`drained`: vitald had drained the node before."""
    node, here = requesting
    ours = f"vitald: {GPU}: GPU has fallen off the bus (xid/79): reboot the node"
    if drained:
        slurm.by_hand("healthcheck")
        assert slurm.known().reason == ours
    slurm("scontrol", *shlex.split(ordered.format(host=HOST, ours=ours)))
    known = slurm.wait(
        lambda known: not ordered.startswith("reboot") or "REBOOT_ISSUED" in known.states,
        "the order",
    )
    refused = recover(node.config, SLURM_CONF=slurm.environment["SLURM_CONF"])
    assert (refused["checks"], here.done, slurm.known()) == (["node"], [], known)
    assert "the node is held in Slurm: " in str(refused["why"])
    assert known.reason in str(refused["why"])


@pytest.mark.core
@pytest.mark.usefixtures("whole_machine")
def test_a_drained_node_of_which_nothing_is_recorded_is_not_rebooted(
    slurm: Slurm, requesting: tuple[Node, Site]
) -> None:
    """It may be edited. One setting names the record for Slurm's scripts and for recovery."""
    node, here = requesting
    slurm.by_hand("healthcheck")
    record = slurm.record.read_text()
    slurm.record.unlink()
    refused = recover(node.config, SLURM_CONF=slurm.environment["SLURM_CONF"])
    assert (refused["checks"], here.done) == (["node"], [])
    assert f"not the one recorded in {slurm.record}" in str(refused["why"])
    slurm.record.write_text(record)
    assert recover(node.config, SLURM_CONF=slurm.environment["SLURM_CONF"])["outcome"] == "ordered"
    assert here.done == ["reboot -f"]
