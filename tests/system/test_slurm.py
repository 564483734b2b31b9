"""The edges of a job, with a real Slurm of one node: prolog, epilog and health check program as
packaging/slurm has them.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import require
from tests.harness import PYTHON, ROOT, Json, Node, free_port
from tests.system.lines import REPLACE_FOR_64, vouched, wait_for_pid, xid
from tests.waiting import WAIT_S, until
from vitald.cli import EX_UNAVAILABLE
from vitald.slurm.drain import drain_node
from vitald.slurm.owner import format_reason
from vitald.slurm.scontrol import SlurmNode, parse_node_state, read_node_state
from vitald.slurm.settings import SlurmSettings

HOST = socket.gethostname().partition(".")[0]
FALLEN = "vitald: gpu/0000:65:00.0: GPU has fallen off the bus (xid/79): reboot the node"
# However long this machine has run
HYPERPOD = 'hyperpod = true\n[recovery]\nmin_uptime = "off"\n'
REMAP_FAILED = "Row Remapper Error: (0x0000000001aa5555) - All reserved rows for bank are remapped"

CONF = """
ClusterName=vitald
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=1
PrologFlags=Alloc
Prolog={folder}/prolog
Epilog={folder}/epilog
HealthCheckProgram={folder}/healthcheck
HealthCheckInterval=1
RebootProgram=/bin/true
ResumeTimeout=3600
SlurmctldDebug=verbose
SlurmdDebug=verbose
"""
NODES = """
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """munged, slurmctld and slurmd of this machine, all in one folder. The scripts are those of
    packaging/slurm.
    """

    def __init__(self, folder: Path, nodes: str = NODES) -> None:
        """`nodes`: what its configuration says of nodes and partitions."""
        self.folder = folder
        self.config = folder / "config.toml"  # a link to that of the node that a test runs
        self.said = folder / "said"
        self.record = folder / "record/reason"
        self.settings = f'record = "{self.record}"'  # under [slurm]
        self._healthy = folder / "health check wanted"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        for name in ("state", "spool", "munge"):
            (folder / name).mkdir(mode=0o700)
        self.said.touch()
        (folder / "slurm.conf").write_text(
            (CONF + nodes).format(host=HOST, folder=folder, ports=(free_port(), free_port()))
        )
        (folder / "munge/key").write_bytes(os.urandom(128))
        (folder / "munge/key").chmod(0o400)
        self._script("vitald", f'cd {ROOT} && exec {PYTHON} -m vitald "$@"')
        for name in ("prolog", "epilog", "healthcheck"):
            only = f'[ -e "{self._healthy}" ] || exit 0\n' if name == "healthcheck" else ""
            where = (
                f"VITALD={folder}/vitald VITALD_CONFIG={self.config} SLURM_CONF={folder}/slurm.conf"
            )
            self._script(name, f"{only}export {where}\nexec {self.script(name)} 2>>{self.said}")

    @staticmethod
    def script(name: str) -> Path:
        return ROOT / "packaging/slurm" / name

    def _script(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def start(self) -> None:
        self.start_controller()
        self._run("slurmd", "-D", "-c")
        self.wait_idle()

    def reboot(self) -> None:
        """As after a boot: `-b`. Slurm compares whole seconds, and slurmd may report that it booted
        a second ago: a boot before its order would be none.
        """
        after_order = int(time.time()) + 2
        until(lambda: time.time() >= after_order, "the clock to pass the order")
        slurmd = self._processes.pop()
        slurmd.kill()
        slurmd.wait()
        self._run("slurmd", "-D", "-b")

    def wait_idle(self) -> None:
        until(lambda: self.known().states == {"IDLE"}, "Slurm's node to be idle")

    def start_controller(self) -> None:
        """Without a slurmd: nodes are what the configuration and scontrol say."""
        munge = self.folder / "munge"
        paths = [
            f"--{name}={munge / name}" for name in ("socket", "pid-file", "log-file", "seed-file")
        ]
        self._run("munged", "--foreground", "--force", f"--key-file={munge / 'key'}", *paths)
        until((munge / "socket").exists, "munged")
        self._run("slurmctld", "-D", "-c")

    def _run(self, *command: str) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment
                )
            )

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __call__(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert not check or done.returncode == 0, (command, done)
        return done.stdout

    def update(self, *change: str) -> None:
        self("scontrol", "update", f"nodename={HOST}", *change)

    def known(self) -> SlurmNode:
        shown = self("scontrol", "show", "node", HOST, check=False)
        return parse_node_state(shown) or SlurmNode(frozenset(), "")

    def wait(self, holds: Callable[[SlurmNode], object], what: str) -> SlurmNode:
        found: list[SlurmNode] = []

        def try_once() -> object:
            found[:] = [self.known()]
            return holds(found[0])

        logs = (self.said, self.folder / "slurmctld.log", self.folder / "slurmd.log")
        until(
            try_once,
            lambda: "\n".join(
                [f"{what}: {found}", *(log.read_text()[-2000:] for log in logs if log.exists())]
            ),
        )
        return found[0]

    def submit(self, script: str) -> str:
        """A batch job's id."""
        path = self.folder / "job"
        path.write_text(f"#!/bin/sh\n{script}\n")
        return self("sbatch", "--parsable", "--output=/dev/null", str(path)).strip()

    def state(self, job: str) -> str:
        return self(
            "squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T %r"
        ).strip()

    def wait_job(self, job: str, *states: str) -> str:
        until(lambda: self.state(job).partition(" ")[0] in states, f"job {job} to be {states}")
        return self.state(job)

    def health_checks(self, *, wanted: bool) -> None:
        if wanted:
            self._healthy.touch()
        else:
            self._healthy.unlink(missing_ok=True)

    def by_hand(self, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A script as slurmd calls it: without a search path."""
        own = {"SLURM_CONF": self.environment["SLURM_CONF"], "SLURMD_NODENAME": HOST, **environment}
        own |= {
            "VITALD": str(self.folder / "vitald"),
            "VITALD_CONFIG": str(self.config),
        }
        return subprocess.run(
            [self.script(name)],
            env=own,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def retire(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """`vitald slurm retire`, as a person calls it."""
        return subprocess.run(
            [self.folder / "vitald", "slurm", "retire", "--config", self.config],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def clean(self) -> None:
        self.health_checks(wanted=False)
        jobs = self("squeue", "--noheader", "--format=%i").split()
        if jobs:
            self("scancel", *jobs)
        until(lambda: not self("squeue", "--noheader"), "the jobs to end")
        if self.known().states != {"IDLE"}:
            self.update("state=down", "reason=ends what a test ordered")
            self.update("state=resume")
        self.update("comment=")
        self.wait_idle()
        self.config.unlink(missing_ok=True)
        shutil.rmtree(self.record.parent, ignore_errors=True)
        self.said.write_text("")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    programs = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch", "srun")
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
        finally:
            made.stop()


@pytest.fixture
def slurm(installed: Slurm) -> Iterator[Slurm]:
    yield installed
    installed.clean()


@pytest.fixture
def on(slurm: Slurm, make_node: Callable[..., Node]) -> Callable[..., Node]:
    """A running node that Slurm's scripts ask, with these settings under [slurm]."""

    def begin(settings: str = "", *, running: bool = True) -> Node:
        node = make_node(extra=f"{REPLACE_FOR_64}[slurm]\n{slurm.settings}\n{settings}")
        slurm.config.unlink(missing_ok=True)
        slurm.config.symlink_to(node.config)
        if running:
            node.start()
        return node

    return begin


def jobs(node: Node, which: str) -> dict[str, Json]:
    return {str(job["job"]): job for job in cast("list[Json]", node.get("/v1/jobs")[which])}


def incident(node: Node) -> Json:
    return cast("list[Json]", node.status()["incidents"])[0]


def clear_all(node: Node) -> None:
    for finding in node.findings():
        path = f"/v1/findings/{finding['id']}/clear"
        assert node.request("POST", path, {"reason": "rebooted"})[0] == 200


@pytest.mark.core
def test_a_healthy_node_lets_a_job_through(slurm: Slurm, on: Callable[..., Node]) -> None:
    """Noted when it begins and when it ends, and nothing is said."""
    node = on()
    job = slurm.submit("exit 0")
    slurm.wait_job(job, "COMPLETED")
    until(lambda: jobs(node, "recent"), "the job's end")
    told = jobs(node, "recent")[job]
    assert (told["user"], told["uid"], told["state"], told["exitCode"], told["signal"]) == (
        "root",
        0,
        "ended",
        0,
        0,
    )
    assert str(told["began"]) <= str(told["ended"])
    assert [event["code"] for event in node.events("&kind=job")] == ["job/began", "job/ended"]
    assert slurm.said.read_text() == ""
    assert slurm.known()[:2] == ({"IDLE"}, "")


@pytest.mark.core
def test_a_job_that_dies_is_told_with_its_incident(slurm: Slurm, on: Callable[..., Node]) -> None:
    """Its id, its user and how it ended; after a restart too."""
    node = on()
    go = slurm.folder / "go"
    go.unlink(missing_ok=True)
    job = slurm.submit(f"while [ ! -e {go} ]; do sleep 0.05; done; exit 3")
    until(lambda: job in jobs(node, "running"), "the job to begin")
    node.write(xid(1))
    wait_for_pid(node, 1)
    assert [one["job"] for one in cast("list[Json]", incident(node)["jobs"])] == [job]

    node.kill()
    node.start()
    assert jobs(node, "running")[job]["state"] == "running"
    go.touch()
    until(lambda: job in jobs(node, "recent"), "the job's end")
    [told] = cast("list[Json]", incident(node)["jobs"])
    assert (told["job"], told["user"], told["state"], told["exitCode"], told["signal"]) == (
        job,
        "root",
        "died",
        3,
        0,
    )
    for verb in ("status", "why"):
        assert f"job {job} of root ended with exit 3, " in node.cli(verb).stdout, verb
    assert [event["code"] for event in node.events("&kind=job")] == ["job/began", "job/died"]
    # No diagnostic is installed on this node: asked for, and said why not.
    assert "no level 2 diagnostic: " in slurm.said.read_text()


@pytest.mark.core
def test_the_prolog_refuses_and_drains(slurm: Slurm, on: Callable[..., Node]) -> None:
    """A node that needs a reboot gets no job, and says why; Slurm's own words for a prolog that
    failed do not hide it.
    """
    node = on()
    node.write(xid(1))
    wait_for_pid(node, 1)
    job = slurm.submit("exit 0")
    known = slurm.wait(lambda node: node.held, "the node to be drained")
    assert known.reason == FALLEN
    until(lambda: "launch failed" in slurm.state(job), "the job to be held")
    assert slurm.known().reason == FALLEN
    assert f"refused: {FALLEN.removeprefix('vitald: ')}" in slurm.said.read_text()
    # It never ran here, though Slurm called the epilog for it.
    until(lambda: slurm.state(job).startswith("PENDING"), "the job to wait")
    assert node.events("&kind=job") == []


@pytest.mark.core
def test_the_health_check_drains_and_resumes_only_its_own(
    slurm: Slurm, on: Callable[..., Node]
) -> None:
    node = on()
    slurm.health_checks(wanted=True)
    node.write(xid(1))
    slurm.wait(lambda known: known.held, "the node to be drained")
    assert slurm.known().reason == FALLEN
    step = 'vitald_incident_step_seconds{{simulated="false",step="{}"}}'
    until(lambda: node.metric(step.format("drained")) is not None, "the step")

    # What is worse since then is told instead.
    node.write(xid(2, code=64, pci="0000:9b:00", message=REMAP_FAILED))
    worse = slurm.wait(lambda known: known.reason != FALLEN, "another reason")
    assert (
        worse.held
        and worse.reason.startswith("vitald: gpu/0000:9b:00.0: ")
        and worse.reason.endswith(": replace the node")
    )

    clear_all(node)
    assert slurm.wait(lambda known: known.states == {"IDLE"}, "the node to be resumed").reason == ""
    assert "resumed: healthy" in slurm.said.read_text()
    until(lambda: node.metric(step.format("back")) is not None, "the step")
    assert (node.metric(step.format("drained")) or 0) <= (node.metric(step.format("back")) or 0)


@pytest.mark.parametrize("note", [f"{FALLEN}; bob: RMA 4711", "vitald: seen by bob, RMA 123"])
@pytest.mark.core
def test_a_note_that_a_person_added_is_kept_and_the_node_is_theirs(
    slurm: Slurm, on: Callable[..., Node], note: str
) -> None:
    node = on()
    node.write(xid(1))
    wait_for_pid(node, 1)
    assert slurm.by_hand("healthcheck").returncode == 0
    assert slurm.known().reason == FALLEN
    slurm.update(f"reason={note}")
    assert "left alone" in slurm.by_hand("healthcheck").stderr  # unfit
    clear_all(node)
    assert slurm.retire().returncode == 0
    assert "not resumed: its reason is not the one recorded" in slurm.by_hand("healthcheck").stderr
    assert (slurm.known().held, slurm.known().reason) == (True, note)
    # They give it back: then it is ours to drain and to resume again.
    slurm.update("state=resume")
    assert slurm.by_hand("healthcheck").returncode == 0
    node.write(xid(2))
    wait_for_pid(node, 2)
    slurm.by_hand("healthcheck")
    assert slurm.known().reason == FALLEN
    clear_all(node)
    slurm.by_hand("healthcheck")
    assert not slurm.known().held


@pytest.mark.parametrize(
    "reason",
    ["ticket 4711", "vitald is suspected", "Action:Replace", "a [note] of bob@example: vitald: "],
)
def test_what_somebody_else_drained_is_left_alone(
    slurm: Slurm, on: Callable[..., Node], reason: str
) -> None:
    """Fit or unfit: state and reason stay."""
    node = on()
    slurm.update("state=drain", f"reason={reason}")
    held = slurm.known()
    assert (held.held, held.reason) == (True, reason)
    assert slurm.by_hand("healthcheck").returncode == 0
    assert slurm.known() == held
    node.write(xid(1))
    wait_for_pid(node, 1)
    assert "left alone" in slurm.by_hand("healthcheck").stderr
    refused = slurm.by_hand("prolog", SLURM_JOB_ID="7")
    assert (refused.returncode, "left alone" in refused.stderr) == (1, True)
    assert slurm.retire().returncode == (EX_UNAVAILABLE if reason.startswith("Action:") else 0)
    assert slurm.known() == held


@pytest.mark.core
def test_retiring_resumes_what_vitald_drained(slurm: Slurm, on: Callable[..., Node]) -> None:
    """Fit or not, and without a daemon."""
    node = on()
    node.write(xid(1))
    wait_for_pid(node, 1)
    slurm.by_hand("healthcheck")
    slurm.update("comment=vitald: for HyperPod")
    node.stop()
    unknown = slurm.retire(SLURMD_NODENAME="nobody")
    assert unknown.returncode == EX_UNAVAILABLE and "Node nobody not found" in unknown.stderr
    assert (slurm.known().held, slurm.record.exists()) == (True, True)
    retired = slurm.retire()
    assert (retired.returncode, f"it was drained for: {FALLEN}" in retired.stderr) == (0, True)
    assert (slurm.known().held, *slurm.known()[1:3]) == (False, "", "")
    assert not slurm.record.exists()
    again = slurm.retire()
    assert (again.returncode, "not drained by vitald: " in again.stderr) == (0, True)


@pytest.mark.core
def test_without_vitald_jobs_are_let_through(slurm: Slurm, on: Callable[..., Node]) -> None:
    node = on(running=False)
    job = slurm.submit("exit 0")
    slurm.wait_job(job, "COMPLETED")
    assert "unknown, and jobs are let through then" in slurm.said.read_text()
    slurm.by_hand("healthcheck")
    assert slurm.known()[:2] == ({"IDLE"}, "")
    node.start()
    wait_for_count(node, "allow", 1)
    wait_for_count(node, "refuse", 0)


def wait_for_count(node: Node, choice: str, count: int) -> None:
    """Of the jobs that began, or were refused, without a verdict."""
    name = f'vitald_slurm_unknown_jobs_total{{choice="{choice}"}}'
    until(lambda: node.metric(name) == count, f"{count} jobs to be counted")


def test_without_vitald_jobs_are_refused_where_that_is_configured(
    slurm: Slurm, on: Callable[..., Node]
) -> None:
    """And the node comes back by itself once vitald does."""
    node = on('unknown = "refuse"', running=False)
    slurm.submit("exit 0")
    known = slurm.wait(lambda node: node.held, "the node to be drained")
    assert known.reason.startswith("vitald: unknown: no socket at ")
    slurm.by_hand("healthcheck")
    assert slurm.known().held
    node.start()
    slurm.health_checks(wanted=True)
    slurm.wait(lambda node: not node.held, "the node to be resumed")


@pytest.mark.parametrize(("unknown", "code"), [("allow", 0), ("refuse", 1)])
def test_a_daemon_that_does_not_answer_costs_no_more_than_the_budget(
    slurm: Slurm, on: Callable[..., Node], unknown: str, code: int
) -> None:
    node = on(f'unknown = "{unknown}"\nbudget = "1s"')
    with node.frozen():
        done = slurm.by_hand("prolog", SLURM_JOB_ID="7")
    assert (done.returncode, "in time" in done.stderr) == (code, True)
    assert slurm.known().held is (unknown == "refuse")
    wait_for_count(node, unknown, 1)


@pytest.mark.parametrize(("unknown", "code"), [("allow", 0), ("refuse", 1)])
def test_a_broken_installation_is_unknown(
    slurm: Slurm, on: Callable[..., Node], unknown: str, code: int
) -> None:
    """A traceback, or no program at all: neither is taken for a refusal."""
    node = on(f'unknown = "{unknown}"', running=False)
    broken = slurm.folder / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    for program in (broken, slurm.folder / "not there"):
        environment = {
            "VITALD": str(program),
            "VITALD_CONFIG": str(slurm.config),
            "SLURM_JOB_ID": "7",
        }
        done = subprocess.run(
            [slurm.script("prolog")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert (done.returncode, "vitald: unknown: " in done.stderr) == (code, True), program
        for name in ("epilog", "healthcheck"):
            assert (
                subprocess.run(
                    [slurm.script(name)],
                    env=environment,
                    capture_output=True,
                    timeout=WAIT_S,
                    check=False,
                ).returncode
                == 0
            )
    node.start()
    wait_for_count(node, unknown, 2)


@pytest.mark.parametrize(
    ("line", "action"),
    [(xid(1), "Action:Reboot"), (xid(1, code=64, message=REMAP_FAILED), "Action:Replace")],
)
@pytest.mark.usefixtures("whole_machine")
def test_hyperpod_gets_its_words(
    slurm: Slurm, on: Callable[..., Node], line: str, action: str
) -> None:
    """Exactly, in the state that it acts on; what happened is in the comment. Then nobody touches
    the node, whatever becomes of it.
    """
    node = on(HYPERPOD)
    node.write(vouched(xid(2, pci="0000:9b:00")), vouched(line))  # replacing outranks rebooting
    node.wait(lambda status: status["openFindings"] == 2)
    job = slurm.submit("exit 0")
    until(lambda: "launch failed" in slurm.state(job), "Slurm to see the refusal")
    known = slurm.wait(lambda known: known.states == {"IDLE", "FAIL"}, "the node to be taken out")
    slurm.by_hand("healthcheck")
    assert slurm.known() == known
    assert known.reason == action
    assert known.comment.startswith("vitald: gpu/0000:")
    log = (slurm.folder / "slurmctld.log").read_text()
    assert f"update_node: node {HOST} reason set to: {action}\n" in log
    assert f"update_node: node {HOST} state set to FAILING\n" in log  # a job was about to begin

    clear_all(node)
    slurm.by_hand("healthcheck")
    assert slurm.known() == known


@pytest.mark.core
@pytest.mark.usefixtures("whole_machine")
def test_hyperpod_acts_on_what_is_confirmed(slurm: Slurm, on: Callable[..., Node]) -> None:
    """What only the log tells of drains the node, and is left to a person until a second source
    agrees.
    """
    node = on(HYPERPOD)
    node.write(xid(1))
    node.wait(lambda status: status["rebootRequired"])
    slurm.by_hand("healthcheck")
    known = slurm.known()
    assert (known.states, known.reason.startswith("vitald: gpu/0000:65:00.0: ")) == (
        {"IDLE", "DRAIN"},
        True,
    )
    node.write(vouched(xid(1)))
    node.wait(lambda status: status["rebootConfirmed"])
    slurm.by_hand("healthcheck")
    assert slurm.known().reason == "Action:Reboot"


@pytest.mark.core
@pytest.mark.usefixtures("whole_machine")
def test_hyperpod_gets_no_more_nodes_than_the_brake_allows(
    slurm: Slurm, on: Callable[..., Node]
) -> None:
    """The health check asks it as root's recovery does; the node is drained all the same."""
    gate = slurm.folder / "gate"
    gate.write_text("#!/bin/sh\necho $VITALD_ACTION of $VITALD_NODE: wait; exit 1\n")
    gate.chmod(0o755)
    node = on(f'{HYPERPOD}brake = ["{gate}"]\n')
    node.write(vouched(xid(1)))
    node.wait(lambda status: status["rebootConfirmed"])
    told = slurm.by_hand("healthcheck").stderr
    assert f"exit 1: reboot of {HOST}: wait" in told, told
    assert (slurm.known().states, slurm.known().reason) == ({"IDLE", "DRAIN"}, FALLEN)
    gate.write_text("#!/bin/sh\n")
    slurm.by_hand("healthcheck")
    assert slurm.known().reason == "Action:Reboot"


@pytest.mark.core
@pytest.mark.usefixtures("whole_machine")
def test_hyperpod_does_not_get_a_node_on_which_somebody_is_at_work(
    slurm: Slurm, on: Callable[..., Node]
) -> None:
    """It would be rebooted under his hands."""
    node = on(HYPERPOD)
    node.write(vouched(xid(1)), vouched(xid(2, pci="0000:9b:00")))
    node.wait(lambda status: status["openFindings"] == 2)
    [other] = [one for one in node.findings() if one["component"] == "gpu/0000:9b:00.0"]
    reason = {"reason": "reseating it"}
    assert node.request("POST", f"/v1/findings/{other['id']}/remedy", reason)[0] == 200
    told = slurm.by_hand("healthcheck").stderr
    assert f"only drained: a remedy is under way: #{other['id']} xid/79 of gpu/" in told
    known = slurm.known()
    assert (known.states, known.reason.startswith("vitald: ")) == ({"IDLE", "DRAIN"}, True)
    assert node.request("POST", f"/v1/findings/{other['id']}/clear", reason)[0] == 200
    slurm.by_hand("healthcheck")
    assert slurm.known().reason == "Action:Reboot"


def test_slurm_keeps_a_reason_as_we_put_it(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be put anew at every turn of the health check, or not be known as ours."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    settings = SlurmSettings(record=slurm.record)
    said = (
        'a "quoted" word',
        'it ends "so"',
        "100 %s of % d",
        "a=b State=IDLE Reason=other",
        "back\\slash \\",
        "[x@y] [root@2026]",
        "two\nlines\t\u2028",
        "x" * 1000,
    )
    for reason in said:
        verdict: Json = {
            "status": "unhealthy",
            "reasons": [reason],
            "rebootRequired": True,
            "replacementRequired": False,
        }
        made = format_reason(settings, verdict)
        for _ in range(2):
            known = read_node_state(HOST, 5.0)
            assert isinstance(known, SlurmNode)
            drain_node(settings, verdict, HOST, known, 5.0)
        assert slurm.known().reason == made, reason
        assert (slurm.folder / "slurmctld.log").read_text().count(
            f"reason set to: {made}\n"
        ) == 1, "once is enough"


def test_a_node_that_slurm_does_not_know(slurm: Slurm, on: Callable[..., Node]) -> None:
    """The job is refused all the same, and the health check says why it does nothing."""
    node = on()
    node.write(xid(1))
    wait_for_pid(node, 1)
    refused = slurm.by_hand("prolog", SLURM_JOB_ID="7", SLURMD_NODENAME="nobody")
    assert (refused.returncode, "Node nobody not found" in refused.stderr) == (1, True)
    assert (
        "nothing done: scontrol show failed: Node nobody not found"
        in slurm.by_hand("healthcheck", SLURMD_NODENAME="nobody").stderr
    )
    assert not slurm.known().held


@pytest.mark.parametrize("where", ["scontrol hangs", "slurmctld is down"])
def test_a_slurm_that_does_not_answer_holds_up_nothing(
    slurm: Slurm, on: Callable[..., Node], tmp_path: Path, where: str
) -> None:
    """Refused within the budget, with the words in the log; and the health check does not wait for
    ever.
    """
    node = on('budget = "1s"')
    node.write(xid(1))
    wait_for_pid(node, 1)
    environment = {}
    if where == "scontrol hangs":
        program = tmp_path / "scontrol"
        program.write_text("#!/bin/sh\ntrap '' TERM\nexec sleep 3600\n")
        program.chmod(0o755)
        environment["PATH"] = f"{tmp_path}:/usr/bin:/bin"
    else:
        conf = tmp_path / "slurm.conf"
        conf.write_text(
            re.sub(
                r"SlurmctldPort=\d+",
                f"SlurmctldPort={free_port()}",
                Path(slurm.environment["SLURM_CONF"]).read_text(),
            )
        )
        environment["SLURM_CONF"] = str(conf)
    refused = slurm.by_hand("prolog", SLURM_JOB_ID="7", **environment)
    assert refused.returncode == 1 and "not drained with a reason: scontrol" in refused.stderr
    assert slurm.by_hand("healthcheck", **environment).returncode == 0
    assert not slurm.known().held


REBOOTS = (
    (),
    ("nextstate=RESUME", "reason=kernel update"),
    ("ASAP",),
    ("ASAP", "nextstate=DOWN", "reason=bob: new firmware"),
)


def begin_job(slurm: Slurm, node: Node) -> None:
    """A job that runs until it is cancelled, past its prolog."""
    slurm.submit("sleep 1000")
    until(lambda: jobs(node, "running"), "the job to pass its prolog")


def order_reboot(slurm: Slurm, how: tuple[str, ...]) -> SlurmNode:
    """`scontrol reboot`: its node, busy, or rebooting if it was idle."""
    slurm("scontrol", "reboot", *how, HOST)
    busy = bool(slurm("squeue", "--noheader"))
    flag = "REBOOT_REQUESTED" if busy else "REBOOT_ISSUED"
    return slurm.wait(lambda known: flag in known.states, "the reboot")


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("how", REBOOTS)
@pytest.mark.core
def test_a_reboot_that_a_person_ordered_stays_ordered(
    slurm: Slurm, on: Callable[..., Node], how: tuple[str, ...], busy: bool
) -> None:
    """Of a node in service: unfit, it is not drained over; fit again, it is not resumed."""
    node = on()
    if busy:
        begin_job(slurm, node)
    ordered = order_reboot(slurm, how)
    node.write(xid(1))
    wait_for_pid(node, 1)
    assert "left alone: it is " in slurm.by_hand("healthcheck").stderr
    assert slurm.by_hand("prolog", SLURM_JOB_ID="7").returncode == 1
    assert slurm.known() == ordered
    clear_all(node)
    assert slurm.by_hand("healthcheck").returncode == 0
    assert slurm.retire().returncode == 0
    assert slurm.known() == ordered


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("how", REBOOTS)
@pytest.mark.core
def test_a_reboot_of_a_node_that_vitald_drained(
    slurm: Slurm, on: Callable[..., Node], how: tuple[str, ...], busy: bool
) -> None:
    """Fit again, it is not resumed before the reboot, which that would cancel. After the reboot it
    is where the person wanted it.
    """
    node = on()
    if busy:
        begin_job(slurm, node)
    node.write(xid(1))
    wait_for_pid(node, 1)
    slurm.by_hand("healthcheck")
    assert slurm.known().reason == FALLEN
    ordered = order_reboot(slurm, how)
    clear_all(node)
    ours = not any(word.startswith("reason=") for word in how)
    assert ("not resumed: it is " in slurm.by_hand("healthcheck").stderr) is ours
    assert slurm.retire().returncode == (EX_UNAVAILABLE if ours else 0)
    assert slurm.known() == ordered
    if busy:
        slurm("scancel", "--state=running")
        slurm.wait(lambda known: "REBOOT_ISSUED" in known.states, "the reboot")
    slurm.reboot()
    after = slurm.wait(lambda known: "REBOOT_ISSUED" not in known.states, "the boot")
    assert after.states >= ({"DOWN"} if "nextstate=DOWN" in how else {"IDLE"})
    slurm.by_hand("healthcheck")
    assert slurm.known().held is ("nextstate=DOWN" in how)


def test_a_node_in_a_reservation_for_maintenance(slurm: Slurm, on: Callable[..., Node]) -> None:
    """Is left alone while that lasts, whoever drained it."""
    node = on()
    node.write(xid(1))
    wait_for_pid(node, 1)
    reservation = (
        *("reservationname=m", "starttime=now", "duration=10", "flags=maint", "user=root"),
        f"nodes={HOST}",
    )
    slurm("scontrol", "create", "reservation", *reservation)
    try:
        slurm.wait(lambda known: "MAINTENANCE" in known.states, "the reservation")
        assert "left alone: it is IDLE+MAINTENANCE" in slurm.by_hand("healthcheck").stderr
        assert not slurm.known().held
    finally:
        slurm("scontrol", "delete", "reservation=m")
    slurm.by_hand("healthcheck")
    assert slurm.known().reason == FALLEN
    slurm("scontrol", "create", "reservation", *reservation)
    try:
        slurm.wait(lambda known: "MAINTENANCE" in known.states, "the reservation")
        clear_all(node)
        assert "not resumed: it is DRAIN+IDLE+MAINT" in slurm.by_hand("healthcheck").stderr
        assert slurm.known().reason == FALLEN
    finally:
        slurm("scontrol", "delete", "reservation=m")
    slurm.by_hand("healthcheck")
    assert not slurm.known().held


def test_a_node_that_is_down_is_left_alone(slurm: Slurm, on: Callable[..., Node]) -> None:
    """By hand or by Slurm: drained it would come back by itself."""
    node = on()
    slurm.update("state=down", "reason=vital part is missing")
    node.write(xid(1))
    wait_for_pid(node, 1)
    known = slurm.known()
    assert "DOWN" in known.states
    slurm.by_hand("healthcheck")
    assert slurm.known() == known


def test_a_drill_replaces_no_instance(slurm: Slurm, on: Callable[..., Node]) -> None:
    node = on(HYPERPOD)
    assert node.cli("drill", "xid", "79").returncode == 0
    node.wait(lambda status: status["rebootRequired"])
    slurm.by_hand("healthcheck")
    known = slurm.known()
    assert (known.states, known.reason.startswith("vitald: SIMULATED: ")) == (
        {"IDLE", "DRAIN"},
        True,
    )
