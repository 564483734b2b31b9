"""Whose a rank is, by its real control group: of a job that a real Slurm started, of a pod, and of
one whose name a user chose.

Slurm's `proctrack/cgroup` runs where the freezer of cgroup v1 can be written to. For the groups of
cgroup v2 and of Kubernetes the test makes some of the same name.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests import job_rank
from tests.conftest import require
from tests.harness import Json, Node
from tests.system.job_events import job_socket, wait_for_job_socket
from tests.system.test_slurm import HOST, Slurm

USER = "nobody"
UID = pwd.getpwnam(USER).pw_uid
CLAIM = "999"
_CGROUPS = Path("/sys/fs/cgroup")
_FREEZER = _CGROUPS / "freezer"
_PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable  # any user may start it


def reported(node: Node) -> list[Json]:
    jobs: list[Json] = node.get("/v1/jobs")["reported"]
    return jobs


def is_writable(hierarchy: Path) -> bool:
    """Whether groups can be made there."""
    probe = hierarchy / f"vitald-probe-{os.getpid()}"
    try:
        probe.mkdir()
        (probe / "cgroup.procs").read_text()
    except OSError:
        return False
    finally:
        with suppress(OSError):
            probe.rmdir()
    return True


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that every user may enter, with a rank's program."""
    made = Path(tempfile.mkdtemp(prefix="vitald-"))
    made.chmod(0o755)
    shutil.copy(job_rank.__file__, made / "rank.py")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    with Node(folder / "n") as made:
        wait_for_job_socket(made)
        yield made


@pytest.fixture
def rank(folder: Path, node: Node) -> list[str]:
    """The command of a rank that claims to be of job 999."""
    hello = json.dumps({"rank": 0, "job": CLAIM})
    return [_PYTHON, str(folder / "rank.py"), str(job_socket(node)), hello, "0.1"]


# --- Slurm


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    programs = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch", "srun")
    require(
        os.geteuid() == 0 and all(map(shutil.which, programs)),
        "root and Slurm (apt-get install slurmd slurmctld slurm-client munge)",
    )
    if not is_writable(_FREEZER):  # not with CI either: nothing that is installed changes it
        pytest.skip("there is no cgroup v1 freezer that can be written to")
    with ExitStack() as stack:
        lock = stack.enter_context(Path("/tmp/vitald-tests-slurm.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vitald-slurm-")))
        made = Slurm(at, "cgroup")
        (at / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for path in (at, at / "munge"):  # srun runs as the job's user
            path.chmod(0o755)
        stack.callback(remove_group, _FREEZER / f"slurm_{HOST}")
        stack.callback(made.stop)
        made.start()
        yield made


def remove_group(group: Path) -> None:
    """With the groups below it."""
    with suppress(OSError):
        for path in sorted(group.rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()
        group.rmdir()


def test_a_rank_that_srun_started_is_its_job(slurm: Slurm, node: Node, rank: list[str]) -> None:
    slurm.config.symlink_to(node.config)
    started = subprocess.Popen(
        ["srun", f"--uid={USER}", "--ntasks=1", "--chdir=/", *rank],
        env=slurm.environment,
        stdout=subprocess.DEVNULL,
        stderr=(slurm.folder / "srun").open("wb"),
    )
    try:
        node.until(
            lambda: started.poll() is not None or reported(node), 30.0, "the rank to connect"
        )
        assert started.poll() is None, (slurm.folder / "srun").read_text()
        (job,) = reported(node)
        (number,) = slurm("squeue", "--noheader", "--format=%i").split()
        assert (job["slurm"], job["claimed"], job["uid"]) == (number, CLAIM, UID)
        assert (job["name"], job["user"]) == (f"job {number} of {USER}", USER)
    finally:
        slurm("scancel", "--signal=KILL", "--user", USER, check=False)
        started.wait(20.0)


# --- groups that the test makes


@pytest.fixture
def make_group() -> Iterator[Callable[[str], Path]]:
    require(os.geteuid() == 0, "root")
    hierarchies = (_CGROUPS / "unified", _CGROUPS, _FREEZER)
    hierarchy = next(filter(is_writable, hierarchies), None)
    if hierarchy is None:  # as in a container: nothing that is installed changes it
        pytest.skip("there are no control groups that can be made")
    made: list[Path] = []

    def make(name: str) -> Path:
        group = hierarchy / name
        for path in reversed((group, *group.parents)):
            if not path.exists():
                path.mkdir()
                made.append(path)
        return group

    yield make
    for path in reversed(made):
        with suppress(OSError):  # a user's groups are below it
            remove_group(path)


def start_in(group: Path, command: list[str], below: str = "") -> subprocess.Popen[bytes]:
    """As the user, who makes and enters a group `below` it."""
    script = 'read _; if [ "$0" ]; then mkdir -p "$0"; echo $$ >"$0/cgroup.procs"; fi; exec "$@"'
    started = subprocess.Popen(
        ["sh", "-ec", script, str(group / below) if below else "", *command],
        cwd="/",
        user=USER,
        group=pwd.getpwnam(USER).pw_gid,
        extra_groups=(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    (group / "cgroup.procs").write_text(str(started.pid))
    assert started.stdin is not None
    started.stdin.write(b"\n")
    started.stdin.close()
    return started


def show_rank(node: Node, started: subprocess.Popen[bytes]) -> Json:
    """Its job, as it is reported."""
    try:
        node.until(lambda: started.poll() is not None or reported(node), 20.0, "the rank")
        assert started.poll() is None
        (job,) = reported(node)
        return job
    finally:
        started.kill()
        started.wait(10.0)


def test_a_rank_in_slurms_group_is_its_job(
    make_group: Callable[[str], Path], node: Node, rank: list[str]
) -> None:
    """As Slurm's cgroup/v2 names it. Source: Slurm, cgroup_v2.html, "Hierarchy overview"."""
    number = str(os.getpid())
    group = make_group(f"system.slice/slurmstepd.scope/job_{number}/step_0/user/task_0")
    job = show_rank(node, start_in(group, rank))
    assert (job["slurm"], job["claimed"], job["uid"]) == (number, CLAIM, UID)
    assert job["name"] == f"job {number} of uid {UID}"


def test_a_rank_in_a_pod_is_the_pods(
    make_group: Callable[[str], Path], node: Node, rank: list[str]
) -> None:
    """As the kubelet's systemd driver names it."""
    uid = str(uuid.uuid4())
    pod = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    group = make_group(f"kubepods.slice/kubepods-burstable.slice/{pod}/cri-containerd-9f2c.scope")
    job = show_rank(node, start_in(group, rank))
    assert (job["pod"], job["slurm"], job["claimed"]) == (uid, "", CLAIM)
    assert job["name"] == f"pod {uid} of uid {UID}"


@pytest.mark.parametrize(
    "below",
    [
        "slurmstepd.scope/job_7/step_0",
        "system.slice/slurmstepd.scope/job_7",
        f"kubepods.slice/kubepods-pod{str(uuid.UUID(int=7)).replace('-', '_')}.slice/9f2c.scope",
    ],
)
def test_a_group_that_the_user_named_is_only_a_claim(
    make_group: Callable[[str], Path], node: Node, rank: list[str], below: str
) -> None:
    """systemd delegates the group of user@.service to the user, who gives those below it names."""
    own = make_group(f"user.slice/user-{UID}.slice/user@{UID}.service")
    for path in (own, own / "cgroup.procs"):
        os.chown(path, UID, -1)
    job = show_rank(node, start_in(own, rank, below))
    assert (job["slurm"], job["pod"], job["claimed"]) == ("", "", CLAIM)
    assert job["name"] == f"job {CLAIM} (its own claim) of uid {UID}"
