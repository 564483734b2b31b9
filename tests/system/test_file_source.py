"""A followed file that grows, is rotated, truncated, missing: each line once, whatever happens in
between.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.harness import Node
from tests.system.lines import about, dated, fresh_pci, ordinary, pids, wait_for_pid, xid
from tests.waiting import until

Make = Callable[..., Node]


class Story:
    """What one test writes and sees: the Xids of a GPU of its own, on a node that others have used
    before.
    """

    def __init__(self, node: Node) -> None:
        self.node, self.log, self.pci = node, node.log, fresh_pci()
        self._lost = self._lost_ever()

    def line(self, pid: int) -> str:
        return xid(pid, pci=self.pci)

    def write(self, *numbers: int) -> None:
        self.node.write(*map(self.line, numbers))

    def seen(self) -> list[int]:
        return pids(about(self.node.events(), self.pci))

    def wait(self, pid: int) -> None:
        until(lambda: pid in self.seen(), f"line {pid}, with {self.seen()} seen")

    def expect(self, *wanted: int) -> None:
        """These lines in this order, each once. The last is waited for, so what should not come has
        had its time.
        """
        self.wait(wanted[-1])
        assert self.seen() == [*wanted]
        assert [finding["count"] for finding in about(self.node.findings(), self.pci)] == [
            len(wanted)
        ]

    def lost(self) -> int:
        """Losses told since the test began."""
        return self._lost_ever() - self._lost

    def _lost_ever(self) -> int:
        return len(self.node.events("&code=vitald/records_lost"))

    @contextmanager
    def meanwhile(self, how: str) -> Iterator[None]:
        """What the daemon does while the file changes: it runs, gets no turn, or is away."""
        if how == "frozen":
            with self.node.frozen():
                yield
        elif how == "live":
            yield
        else:
            self.node.stop(signal.SIGKILL if how == "killed" else signal.SIGTERM)
            yield
            self.node.start()


@pytest.fixture
def story(shared_node: Node) -> Story:
    if not shared_node.answers("/healthz"):
        shared_node.restart()
    shared_node.log.touch()
    return Story(shared_node)


@pytest.mark.parametrize("how", ["live", "frozen", "killed", "stopped"])
def test_growing(story: Story, how: str) -> None:
    story.write(1)
    story.wait(1)
    with story.meanwhile(how):
        story.write(2)
    story.write(3)
    story.expect(1, 2, 3)


@pytest.mark.parametrize("how", ["live", "frozen", "killed"])
def test_a_line_comes_in_two_pieces(story: Story, how: str) -> None:
    """A line is read when its end is there, and as a whole."""
    whole = story.line(2)
    with story.log.open("a") as log:
        log.write(f"{story.line(1)}\n{whole[:30]}")
        log.flush()
        story.wait(1)
        with story.meanwhile(how):
            log.write(whole[30:])
            log.flush()
        assert story.seen() == [1]
        log.write("\n")
    story.write(3)
    story.expect(1, 2, 3)


@pytest.mark.core
@pytest.mark.parametrize("how", ["live", "frozen", "killed"])
def test_rotated_by_rename(story: Story, how: str) -> None:
    """The rest of the old file is read first."""
    story.write(1)
    story.wait(1)
    with story.meanwhile(how):
        story.write(2, 3)
        story.log.rename(story.log.with_name("kernel.log.1"))
        story.write(4)
    story.write(5)
    story.expect(1, 2, 3, 4, 5)
    assert story.lost() == 0


@pytest.mark.parametrize("how", ["live", "frozen", "killed"])
def test_the_writer_goes_on_in_the_renamed_file(story: Story, how: str) -> None:
    """As syslogd does until it is told: what it still writes there is read."""
    with story.log.open("a") as old:
        story.write(1)
        story.wait(1)
        with story.meanwhile(how):
            story.log.rename(story.log.with_name("kernel.log.1"))
            old.write(f"{story.line(2)}\n")
    if how != "killed":  # a daemon that starts now has no file at the path yet
        story.wait(2)
    story.write(3)
    story.expect(1, 2, 3)


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_rotated_twice(story: Story, how: str) -> None:
    """The file between the one that was read and the present one is read too, or told as lost."""
    story.write(1)
    story.wait(1)
    with story.meanwhile(how):
        story.write(2)
        story.log.rename(story.log.with_name("kernel.log.1"))
        story.write(3)
        story.log.with_name("kernel.log.1").rename(story.log.with_name("kernel.log.2"))
        story.log.rename(story.log.with_name("kernel.log.1"))
        story.write(4)
    story.wait(4)
    assert story.seen() == [1, 2, 3, 4] or (story.lost() and story.seen() == [1, 2, 4])


def test_the_old_file_is_gone(story: Story) -> None:
    """It went while the daemon was away: what may have been in it is told as lost."""
    story.write(1)
    story.wait(1)
    with story.meanwhile("stopped"):
        story.write(2)
        story.log.rename(story.node.folder / "elsewhere")
        story.write(3)
    story.expect(1, 3)
    assert story.lost() == 1
    assert story.node.findings("&code=vitald/records_lost")


@pytest.mark.parametrize("how", ["live", "frozen", "killed"])
def test_copied_and_truncated(story: Story, how: str) -> None:
    story.write(1, 2)
    story.wait(2)
    with story.meanwhile(how):
        story.log.with_name("kernel.log.1").write_bytes(story.log.read_bytes())
        os.truncate(story.log, 0)
    story.write(3)
    story.expect(1, 2, 3)


@pytest.mark.core
@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_truncated_and_grown_past_the_place(story: Story, how: str) -> None:
    """The size alone does not tell that it is another text."""
    story.write(1, 2)
    story.wait(2)
    with story.meanwhile(how):
        size = story.log.stat().st_size
        story.log.write_text(
            f"{story.line(3)}\n" + f"{ordinary(1)}\n" * (size // 64) + f"{story.line(4)}\n"
        )
    story.write(5)
    story.expect(1, 2, 3, 4, 5)


def test_gone_while_it_was_followed(story: Story) -> None:
    """Removed, and another in its place later."""
    story.write(1)
    story.wait(1)
    story.log.unlink()
    story.write(2)
    story.expect(1, 2)


def test_lines_that_differ_in_nothing(story: Story) -> None:
    """The same text twice is two events: a line's identity is its place."""
    story.write(1, 1, 2)
    story.expect(1, 1, 2)


def test_an_over_long_line(story: Story) -> None:
    """It is nobody's kernel record; the lines around it are."""
    story.node.write(
        story.line(1), "x" * 100_000, story.line(2), "y" * 700_000 + story.line(666), story.line(3)
    )
    story.expect(1, 2, 3)


@pytest.mark.parametrize("length", [70_000, 1 << 18], ids=["in two pieces", "at once"])
def test_the_rest_of_an_over_long_line_is_no_line(story: Story, length: int) -> None:
    """Its middle may quote what it likes."""
    before = story.node.metric("vitald_kernel_records_torn_total")
    with story.log.open("a") as log:
        log.write("x" * length)
        if length < 1 << 18:
            log.flush()
            until(
                lambda: story.node.metric("vitald_kernel_records_torn_total") != before,
                "the first piece to be read",
            )
        log.write(f"{story.line(666)}\n")
    story.write(1)
    story.expect(1)


def test_bytes_that_are_no_text(story: Story) -> None:
    """NUL, latin-1, lone continuation bytes, a carriage return: kept apart from the lines around
    them.
    """
    first, second = story.line(1).encode(), story.line(2).encode()
    with story.log.open("ab") as log:
        log.write(
            first + b"\n\x00\x00\xff\xfe\x80\r\n" + second + b"\r\n\n" + bytes(range(256)) + b"\n"
        )
    story.write(3)
    story.expect(1, 2, 3)


def test_every_form_of_line(story: Story) -> None:
    """dmesg, journalctl, syslog and raw records in one file; another program's line is not the
    kernel's.
    """
    story.node.write(
        f"[    5.123456] {story.line(1)}",
        f"Nov 20 13:48:08 node17 kernel: {story.line(2)}",
        f"2026-11-20T13:48:08.123456+00:00 node17 kernel: [ 5.1] {story.line(3)}",
        f"3,812,5123456,-;{story.line(4)}",
        f"Nov 20 13:48:08 node17 myjob[77]: {story.line(666)}",
        f"myjob: {story.line(667)}",
        story.line(5),
    )
    story.expect(1, 2, 3, 4, 5)


def test_missing_then_there(make_node: Make) -> None:
    """Silence is not health: unknown and exit code 30, until it is there."""
    node = make_node()
    node.log.unlink()
    node.start()
    status = node.wait(lambda status: status["sources"][0]["state"] == "failed")
    assert (status["status"], status["rebootRequired"]) == ("unknown", False)
    assert str(node.log) in str(status["sources"])
    assert node.metric('vitald_source_up{source="kernel_log"}') == 0
    assert [node.cli(verb).returncode for verb in ("check", "status")] == [30, 30]
    until(lambda: node.findings("&code=vitald/source_failed"), "the finding")
    node.write(dated(xid(1)))
    node.wait(lambda status: status["sources"][0]["state"] == "ok")
    wait_for_pid(node, 1)
    assert pids(node.events()) == [1]
    assert node.findings("&code=vitald/source_failed") == []
    assert node.metric('vitald_source_up{source="kernel_log"}') == 1
    assert node.cli("check").returncode == 20


def test_not_healthy_before_the_whole_file_was_judged(make_node: Make) -> None:
    """The fault stands at the end of a long file; until it is read nobody is told that the node is
    well.
    """
    node = make_node()
    chance = random.Random(1)
    node.write(*(ordinary(chance.randrange(10**9)) for _ in range(200_000)), dated(xid(1)))
    node.start(wait=False)
    until(lambda: node.answers("/healthz"), "the daemon to answer")
    said = set()

    def judged() -> object:
        status = node.status()
        said.add(status["status"])
        return status["rebootRequired"]

    until(judged, "the last line")
    assert "healthy" not in said


def test_a_record_of_a_process_in_a_file(make_node: Make) -> None:
    """A form that keeps the facility is not taken at its word."""
    node = make_node(userspace="ignore")
    node.start()
    node.write(
        f"12,812,5123456,-;{xid(1)}", f"<12>{xid(2)}", f"user  :err   : [    5.1] {xid(3)}", xid(4)
    )
    wait_for_pid(node, 4)
    assert [event["trust"] for event in node.events()] == [
        "untrusted",
        "untrusted",
        "untrusted",
        "kernel",
    ]
    assert [finding["count"] for finding in node.findings()] == [1]
