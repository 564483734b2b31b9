"""Jobs on the job socket of a real daemon: what is seen of them, and that none of it is judged."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import PYTHON, ROOT, Json, Node
from tests.job_rank import END, NOT_FINITE, Rank, RankProcess
from tests.pace import patient
from tests.system.job_events import job_socket, list_events, wait_for_job_socket, wait_until
from tests.system.lines import wait_for_pid, xid


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as made:
        wait_for_job_socket(made)
        yield made


@pytest.fixture
def start(node: Node) -> Iterator[Callable[..., RankProcess]]:
    started: list[RankProcess] = []

    def make(**hello: object) -> RankProcess:
        started.append(RankProcess(job_socket(node), **hello))
        return started[-1]

    yield make
    for process in started:
        process.end()


@pytest.mark.smoke
def test_a_rank_is_stopped_and_goes_on(node: Node, start: Callable[..., RankProcess]) -> None:
    waits, stopped = (start(rank=rank, job="1234", step_limit_s=2) for rank in (0, 1))
    wait_for_step(node, 10)
    wait_for_step(node, 60)  # not only read once: it is seen to make steps
    assert list_events(node, "job/stalled") == []
    stopped.signal(signal.SIGSTOP)
    wait_until(lambda: list_events(node, "job/stalled"))
    (event,) = list_events(node, "job/stalled")
    assert event["fields"]["ranks"] == "1" and event["trust"] == "job"
    assert node.status()["status"] == "healthy"
    stopped.signal(signal.SIGCONT)
    wait_until(lambda: list_events(node, "job/resumed"))
    assert waits.pid != stopped.pid


def test_a_killed_rank_is_reported_with_its_last_step(
    node: Node, start: Callable[..., RankProcess]
) -> None:
    rank = start(rank=3, job="1234")
    wait_for_step(node, 10)
    rank.signal(signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: list_events(node, "job/rank_ended"))
    took = time.monotonic() - began
    last = rank.wait_for_end()
    (event,) = list_events(node, "job/rank_ended")
    assert event["fields"]["step"] in (last, last + 1)  # killed before it printed the step
    assert (event["fields"]["rank"], event["fields"]["pid"]) == (3, rank.pid)
    assert event["fields"]["uid"] == os.getuid() and took < patient(1.0)


def test_a_goodbye_is_no_death(node: Node) -> None:
    by_page, by_packet = (Rank(job_socket(node), rank=rank) for rank in (0, 1))
    by_page.step(7, phase=END)
    by_packet.step(7)
    by_packet.send(kind="phase", phase="end")
    by_page.close()
    by_packet.close()
    dead = Rank(job_socket(node), rank=2)
    dead.step(9)
    dead.close()
    wait_until(lambda: list_events(node, "job/rank_ended"))
    (event,) = list_events(node, "job/rank_ended")
    assert event["fields"]["rank"] == 2 and event["fields"]["step"] == 9


def test_what_is_shown_of_a_job(node: Node) -> None:
    node.request("POST", "/v1/jobs", {"event": "begin", "job": "77", "user": "alice", "uid": 1})
    ranks = [Rank(job_socket(node), rank=rank, job="77") for rank in range(2)]
    for step in range(1, 6):
        for rank in ranks:
            rank.step(step, seconds=1.93, loss=2.5)
    wait_until(lambda: reported(node) and reported(node)[0]["step"] == 5)
    (job,) = reported(node)
    # Nothing but the job itself says that it is 77, so it is not alice's
    assert job["name"] == f"job 77 (its own claim) of uid {os.getuid()}"
    assert (job["slurm"], job["claimed"], job["user"]) == ("", "77", "")
    assert (job["ranks"], job["stepSeconds"], job["loss"]) == (2, 1.93, 2.5)
    assert job["state"] == "train"
    assert "its own claim) of uid" in node.cli("status").stdout
    assert ": 2 ranks, step 5, 1.93 s a step" in node.cli("status").stdout
    assert node.metric("vitald_job_ranks") == 2.0
    assert node.metric("vitald_job_step_seconds") == 1.93
    assert node.metric("vitald_job_socket_up") == 1.0
    for rank in ranks:
        rank.send(kind="phase", phase="end")
        rank.close()
    wait_until(lambda: reported(node) == [])


def test_a_loss_that_is_not_finite_and_an_error_and_a_checkpoint(node: Node) -> None:
    rank = Rank(job_socket(node), rank=0, job="5")
    rank.step(603, flags=NOT_FINITE)
    rank.send(kind="error", what="nccl", text="Watchdog caught collective operation timeout")
    for state in ("begin", "failed"):
        rank.send(kind="checkpoint", state=state, step=600, tier="global", seconds=1.5)
    codes = ("job/not_finite", "job/error", "job/checkpoint_failed")
    wait_until(lambda: all(list_events(node, code) for code in codes))
    (event,) = list_events(node, "job/not_finite")
    assert event["fields"]["step"] == 603
    assert "Watchdog caught" in list_events(node, "job/error")[0]["raw"]
    assert node.metric('vitald_job_checkpoints_total{outcome="failed",tier="global"}') == 1.0
    status = node.status()
    assert (status["status"], status["findings"], status["action"]) == ("healthy", [], "none")
    assert {notice["code"] for notice in status["notices"]} == set(codes)
    rank.send(kind="phase", phase="end")
    rank.close()


def test_why_of_a_notice(node: Node) -> None:
    """Whose claim it is, since when, what else happened, and what to look at."""
    node.write(xid(1))
    wait_for_pid(node, 1)
    rank = Rank(job_socket(node), rank=0, job="5", step_limit_s=1)
    for step in range(1, 5):
        rank.step(step, seconds=0.1)
        wait_for_step(node, step)
    wait_until(lambda: node.status().get("notices"), 30.0)
    shown = node.cli("why", "job/stalled").stdout
    for part in (
        "job/stalled  ",
        "notice   job 5 (its own claim) of uid ",
        "since    ",
        f"reported by processes of uid {os.getuid()} (the job's id is its own claim), over the job",
        "s before it began: gpu/0000:65:00.0: GPU has fallen off the bus (xid/79)",
        "look at  ",
        "effect   none",
        xid(1),
    ):
        assert part in shown, part
    (explained,) = json.loads(node.cli("why", "job/stalled", "--json").stdout)["notices"]
    assert {"xid/79", "job/stalled"} <= {event["code"] for event in explained["events"]}
    assert explained["notice"]["text"] in shown
    assert "open notices: vitald why job/stalled" in node.cli("why").stdout
    missing = node.cli("why", "job/slow")
    assert (missing.returncode, missing.stdout) == (69, "")
    assert "no open notice or finding has the code job/slow" in missing.stderr
    assert "rule     xid/79" in node.cli("why", "xid/79").stdout
    rank.send(kind="phase", phase="end")
    rank.close()


def test_a_verdict_is_the_same_with_and_without_jobs(tmp_path: Path) -> None:
    """A node with a fault, and the same one on which jobs report all that there is to report."""
    verdicts = []
    for name, has_jobs in (("a", False), ("b", True)):
        with Node(tmp_path / name) as node:
            node.write(xid(79))
            wait_for_pid(node, 79)
            if has_jobs:
                report_everything(node)
            status = node.status()
            verdicts.append({key: status[key] for key in VERDICT})
            replayed = node.cli("replay", str(node.state / "ledger.db"), "--json")
            assert replayed.returncode == 0 and len(replayed.stdout.splitlines()) == 1, replayed
    assert verdicts[0] == verdicts[1]
    assert verdicts[0]["status"] == "unhealthy"


def test_ranks_are_advised_to_save(node: Node) -> None:
    rank = Rank(job_socket(node), rank=0)
    body = {"advice": "save", "seconds": 600, "reason": "planned reboot"}
    status, answer = node.request("POST", "/v1/advice", body)
    assert status == 200, answer
    packet = rank.receive()
    assert (packet["kind"], packet["advice"], packet["why"]) == ("advice", "save", "planned reboot")
    late = Rank(job_socket(node), rank=1)
    assert late.receive()["advice"] == "save"
    withdrawn = {"advice": "none", "reason": "cancelled"}
    status, answer = node.request("POST", "/v1/advice", withdrawn)
    assert status == 200, answer
    assert rank.receive()["advice"] == "none" and late.receive()["advice"] == "none"


def test_who_connects_gets_the_advice_of_now(node: Node) -> None:
    """Not that of up to a second ago: the ranks and listeners that are there are told later."""
    announced = {"advice": "save", "seconds": 600, "reason": "planned reboot"}
    withdrawn = {"advice": "none", "reason": "cancelled"}
    for _ in range(5):
        assert node.request("POST", "/v1/advice", announced)[0] == 200
        assert ask_advice(job_socket(node)) == "save"
        assert node.request("POST", "/v1/advice", withdrawn)[0] == 200
        assert ask_advice(job_socket(node)) == "none"


def ask_advice(path: Path) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.settimeout(patient(10.0))
        listener.connect(str(path))
        listener.send(json.dumps({"v": 1, "kind": "listen"}).encode())
        return str(json.loads(listener.recv(4096))["advice"])


def test_the_daemon_is_started_again_while_a_job_runs(
    node: Node, start: Callable[..., RankProcess]
) -> None:
    rank = start(rank=0, job="1234")
    wait_until(lambda: reported(node))
    node.restart()
    wait_for_step(node, 10)
    assert list_events(node, "job/rank_ended") == []
    rank.signal(signal.SIGKILL)
    wait_until(lambda: list_events(node, "job/rank_ended"))


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    with Node(tmp_path, extra="[job]\nenabled = false\n") as node:
        assert not job_socket(node).exists()
        assert "switched off" in node.get("/v1/jobs")["socket"]["error"]
        assert node.metric("vitald_job_socket_up") == 0.0


# --- hostile clients


def test_wrong_packets_end_a_connection(node: Node) -> None:
    rank = Rank(job_socket(node))
    for _ in range(10):
        rank.socket.send(b"{")
    assert rank.socket.recv(10) == b""
    twice = Rank(job_socket(node), rank=0)
    for _ in range(10):
        twice.send(v=1, kind="hello", rank=0)
    assert twice.socket.recv(10) == b""
    assert node.get("/v1/jobs")["socket"]["packetsWrong"] == 20
    Rank(job_socket(node), rank=1).close()  # stored in order: what came before is there, too
    wait_until(lambda: list_events(node, "job/rank_ended"))
    assert [each["fields"]["rank"] for each in list_events(node, "job/rank_ended")] == [1]


def test_300_connections(node: Node) -> None:
    opened = [Rank(job_socket(node)) for _ in range(300)]
    wait_until(lambda: node.get("/v1/jobs")["socket"]["refused"] == 300 - 64)
    for rank in opened:
        rank.close()
    wait_until(lambda: node.get("/v1/jobs")["socket"]["connections"] == 0)
    Rank(job_socket(node), rank=0).close()


def test_a_page_that_lies(node: Node) -> None:
    rank = Rank(job_socket(node), rank=0, job="liar")
    source = random.Random(7)
    until = time.monotonic() + 4.0
    while time.monotonic() < until:
        rank.write(source.randbytes(80))
        rank.step(source.randrange(2**53), seconds=source.choice([-1.0, 1e300]), phase=99)
        time.sleep(0.01)
    assert node.status()["status"] == "healthy"
    assert node.get("/v1/jobs")["socket"]["error"] == ""
    rank.close()
    wait_until(lambda: list_events(node, "job/rank_ended"))


def test_a_claim_does_not_reach_the_job_of_another_user(node: Node) -> None:
    mine = Rank(job_socket(node), rank=0, job="1234")
    mine.step(50)
    program = (
        "import os, sys, time; os.setresuid(65534, 65534, 65534); sys.path.insert(0, '.')\n"
        "from pathlib import Path; from tests.job_rank import Rank\n"
        "rank = Rank(Path('job/job.sock'), rank=0, job='1234'); rank.step(1)\n"
        "print('greeted', flush=True); time.sleep(60)"
    )
    before = "import sys; sys.path.insert(0, sys.argv[1]); import tests.job_rank\n"
    other = subprocess.Popen(
        [PYTHON, "-c", before + program, str(ROOT)],
        cwd=node.runtime,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None and other.stdout.readline() == "greeted\n"
    wait_until(lambda: sorted(job["uid"] for job in reported(node)) == [os.getuid(), 65534])
    assert [job["ranks"] for job in reported(node)] == [1, 1]
    other.kill()
    other.communicate()
    wait_until(lambda: list_events(node, "job/rank_ended"))
    (event,) = list_events(node, "job/rank_ended")
    assert event["fields"]["uid"] == 65534 and event["fields"]["step"] == 1
    wait_until(lambda: [job["step"] for job in reported(node)] == [50])


def test_a_child_that_holds_the_connection(node: Node) -> None:
    """A fork keeps the rank until its last process has ended."""
    rank = Rank(job_socket(node), rank=0)
    rank.step(3)
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    rank.close()
    time.sleep(0.5)
    assert list_events(node, "job/rank_ended") == []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    wait_until(lambda: list_events(node, "job/rank_ended"))


def test_a_connection_that_floods_is_closed_and_one_that_sends_too_much_is_not(node: Node) -> None:
    flood, busy = (Rank(job_socket(node), rank=rank) for rank in (0, 1))
    flood.socket.setblocking(False)
    until, closed = time.monotonic() + patient(10.0), False
    while not closed and time.monotonic() < until:
        busy.send(kind="phase", phase="train")
        for _ in range(5):
            try:
                flood.send(kind="phase", phase="train")
            except BlockingIOError:
                pass
            except OSError:
                closed = True
        time.sleep(0.02)
    assert closed
    busy.send(kind="phase", phase="train")
    wait_until(lambda: node.get("/v1/jobs")["socket"]["connections"] == 1)
    assert list_events(node, "job/rank_ended") == []
    busy.close()


_FLOOD = """
import itertools, json, os, random, socket, sys, time
os.nice(19)  # on a node, jobs do not take the daemon's processors from it
path, until = sys.argv[1], time.monotonic() + float(sys.argv[2])
def connect(job):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(path)
        sock.send(json.dumps({"v": 1, "kind": "hello", "rank": 0, "job": job}).encode())
    except OSError:
        pass
    return sock
socks = [connect(f"flood {number}") for number in range(30)]
for number in itertools.count():
    if time.monotonic() > until:
        break
    place = number % len(socks)
    data = b'{"kind":"error","what":"nan","text":"flood"}'
    if place < 5:  # which the daemon closes soon
        data = random.choice([b"x" * 3000, data, b"["])
    try:
        socks[place].setblocking(False)
        socks[place].send(data)
    except BlockingIOError:
        pass
    except OSError:
        socks[place] = connect(f"again {number}")
"""


def test_a_flood(node: Node) -> None:
    """The API answers, ledger and memory stay small, a good job is still seen."""
    good = Rank(job_socket(node), rank=0, job="good")
    good.step(1)
    wait_until(lambda: reported(node))
    events, before = len(node.events()), resident_bytes(node)
    floods = [
        subprocess.Popen([sys.executable, "-c", _FLOOD, str(job_socket(node)), "6"])
        for _ in range(2)
    ]
    times = []
    while any(flood.poll() is None for flood in floods):
        began = time.monotonic()
        status = node.status()
        times.append(time.monotonic() - began)
        assert (status["status"], status["findings"]) == ("healthy", [])
        time.sleep(0.05)
    for flood in floods:
        assert flood.wait(10.0) == 0
    times.sort()
    print("status during a flood:", json.dumps([round(1000 * each, 1) for each in times]))
    assert times[len(times) // 2] < patient(0.1)
    assert len(node.events()) - events < 100
    assert resident_bytes(node) - before < 16 * 2**20
    assert node.get("/v1/jobs")["socket"]["packetsDropped"] > 0
    good.step(2)
    wait_until(lambda: any(job["step"] == 2 for job in reported(node)))


def resident_bytes(node: Node) -> int:
    text = Path(f"/proc/{node.status()['pid']}/statm").read_text()
    return int(text.split()[1]) * os.sysconf("SC_PAGESIZE")


VERDICT = (
    *("status", "action", "rebootRequired", "replacementRequired", "reasons"),
    *("openFindings", "suspects"),
)


def report_everything(node: Node) -> None:
    wait_for_job_socket(node)
    rank = Rank(job_socket(node), rank=0, job="1", step_limit_s=1)
    for step in range(1, 5):
        rank.step(step, flags=NOT_FINITE)
        wait_until(lambda: reported(node) and reported(node)[0]["step"] == step)
    rank.send(kind="error", what="cuda", text=xid(79))
    rank.send(kind="checkpoint", state="failed", step=3, tier="global")
    codes = ("job/not_finite", "job/error", "job/checkpoint_failed", "job/stalled")
    wait_until(lambda: all(list_events(node, code) for code in codes))
    rank.close()
    wait_until(lambda: list_events(node, "job/rank_ended"))


def wait_for_step(node: Node, least: int) -> None:
    """Until the daemon has seen the ranks make this step."""
    wait_until(lambda: any((job["step"] or 0) >= least for job in reported(node)))


def reported(node: Node) -> list[Json]:
    jobs: list[Json] = node.get("/v1/jobs")["reported"]
    return jobs


def test_a_listener_is_no_rank(node: Node) -> None:
    """It gets the advice, counts as no job, and may say nothing else."""
    listener = Rank(job_socket(node))
    listener.send(v=1, kind="listen")
    assert listener.receive()["advice"] == "none"
    assert node.cli("advise", "save", "--for", "5m", "--reason", "x").returncode == 0
    assert listener.receive()["advice"] == "save"
    for kind in ("listen", "hello", "step"):
        listener.send(v=1, kind=kind, rank=0, step=1)
    wait_until(lambda: node.get("/v1/jobs")["socket"]["packetsWrong"] == 3)
    assert node.get("/v1/jobs")["reported"] == []
    time.sleep(12.0)  # longer than a rank may take for its hello
    assert node.get("/v1/jobs")["socket"]["connections"] == 1
    listener.close()
