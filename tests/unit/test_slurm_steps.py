"""Job steps of Slurm on this node, by their processes."""

from __future__ import annotations

from pathlib import Path

from vitald.slurm.slurmd import find_jobs_with_steps


def add_process(procfs: Path, pid: str, name: bytes, line: bytes) -> None:
    (procfs / pid).mkdir()
    (procfs / pid / "comm").write_bytes(name + b"\n")
    (procfs / pid / "cmdline").write_bytes(line)


def test_a_job_is_found_once_by_its_steps(tmp_path: Path) -> None:
    add_process(tmp_path, "1", b"slurmstepd", b"slurmstepd: [4711.0]\0")
    add_process(tmp_path, "2", b"slurmstepd", b"slurmstepd: [4711.batch]\0")
    add_process(tmp_path, "3", b"slurmstepd", b"slurmstepd\0infinity\0")  # holds cgroups for ever
    add_process(tmp_path, "4", b"python3", b"slurmstepd: [4712.0]\0")
    add_process(tmp_path, "5", b"slurmstepd", b"slurmstepd: [4713.0]\0")
    assert sorted(find_jobs_with_steps(tmp_path)) == ["4711", "4713"]


def test_any_name_that_a_user_gives_a_process_is_read(tmp_path: Path) -> None:
    """The kernel takes any bytes for one, and also for the command line."""
    add_process(tmp_path, "1", b"\xff\xfe", b"\xff\0")
    add_process(tmp_path, "2", b"slurmstepd", b"slurmstepd: [\xff]\0")
    add_process(tmp_path, "3", b"slurmstepd", b"slurmstepd: [4711.0]\0")
    (tmp_path / "4").mkdir()  # it has just ended
    (tmp_path / "self").mkdir()
    assert find_jobs_with_steps(tmp_path) == ["4711"]
