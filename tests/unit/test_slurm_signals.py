"""`[slurm] signal`: which jobs are signalled, how, and that none is signalled twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitald.slurm import scontrol
from vitald.slurm.job_signals import FILE, MAX_SIGNALS, signal_jobs
from vitald.slurm.settings import Settings

SQUEUE = "--noheader --states=RUNNING --nodelist=gpu01 --format=%A"


class Slurm:
    """squeue and scancel as programs that note how they are called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self.jobs("7", "8")
        self.answer("squeue", f"cat {folder}/jobs")
        self.answer("scancel", "")
        monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
        monkeypatch.setattr(scontrol, "PATH", "/bin:/usr/bin")

    def answer(self, name: str, text: str) -> None:
        path = self._folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._folder}/calls\n{text}\n')
        path.chmod(0o755)

    def jobs(self, *names: str) -> None:
        (self._folder / "jobs").write_text("".join(f"{name}\n" for name in names))

    def fail(self, name: str) -> None:
        self.answer(name, "echo error: no controller >&2; exit 1")

    def take_calls(self) -> list[str]:
        path = self._folder / "calls"
        calls = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return calls

    def take_signals(self) -> list[str]:
        return [call for call in self.take_calls() if call.startswith("scancel")]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(tmp_path, monkeypatch)


def advised(finding: int | None = 3, **more: object) -> dict[str, object]:
    advice = {"save": True, "why": "gpu/0: a title", "by": None, "finding": finding, **more}
    return {"status": "degraded", "bootId": "boot-a", "advice": advice}


def check(tmp_path: Path, status: dict[str, object], signal: str = "USR1") -> None:
    """A health check's part."""
    settings = Settings(signal=signal, reasons_file=tmp_path / "record/slurm-reason")
    signal_jobs(settings, status, "gpu01", 5.0)


def test_the_jobs_of_the_node_once(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(tmp_path, advised())
    assert slurm.take_calls() == [
        f"squeue {SQUEUE}",
        "scancel --signal=USR1 7",
        "scancel --signal=USR1 8",
    ]
    assert "job 7: SIGUSR1 sent, so that it saves: gpu/0: a title" in capsys.readouterr().err
    check(tmp_path, advised(why="another text of the same finding"))
    assert slurm.take_signals() == []


def test_a_job_that_came_later_and_another_finding(slurm: Slurm, tmp_path: Path) -> None:
    check(tmp_path, advised())
    slurm.take_calls()
    slurm.jobs("8", "9")
    check(tmp_path, advised())
    assert slurm.take_signals() == ["scancel --signal=USR1 9"]
    check(tmp_path, advised(finding=4))
    assert slurm.take_signals() == ["scancel --signal=USR1 8", "scancel --signal=USR1 9"]
    check(tmp_path, {**advised(finding=4), "bootId": "boot-b"})
    assert len(slurm.take_signals()) == 2


def test_two_announcements(slurm: Slurm, tmp_path: Path) -> None:
    slurm.jobs("7")
    for by in ("2026-11-20T12:00:00.000Z", "2026-11-20T12:00:00.000Z", "2026-11-21T12:00:00.000Z"):
        check(tmp_path, advised(finding=None, by=by))
    assert slurm.take_signals() == ["scancel --signal=USR1 7"] * 2


def test_a_job_gets_only_so_many(slurm: Slurm, tmp_path: Path) -> None:
    """Root does not believe the daemon without a limit."""
    slurm.jobs("7")
    for number in range(2 * MAX_SIGNALS):
        check(tmp_path, advised(finding=number))
    assert len(slurm.take_signals()) == MAX_SIGNALS


def test_the_batch_script(slurm: Slurm, tmp_path: Path) -> None:
    check(tmp_path, advised(), "B:USR2")
    assert slurm.take_signals()[0] == "scancel --signal=USR2 --batch 7"


@pytest.mark.parametrize(
    ("status", "signal"),
    [
        (advised(), "off"),
        (advised(save=False), "USR1"),
        ({"status": "healthy", "bootId": "boot-a"}, "USR1"),  # an older daemon
    ],
)
def test_nothing_is_asked(
    slurm: Slurm, tmp_path: Path, status: dict[str, object], signal: str
) -> None:
    check(tmp_path, status, signal)
    assert slurm.take_calls() == []


def test_slurm_that_does_not_answer_is_asked_again(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.fail("squeue")
    check(tmp_path, advised())
    assert slurm.take_signals() == []
    assert "no job signalled: squeue --noheader failed" in capsys.readouterr().err
    slurm.answer("squeue", "echo 7")
    check(tmp_path, advised())
    assert slurm.take_signals() == ["scancel --signal=USR1 7"]


def test_a_signal_that_failed_is_not_repeated(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may have arrived all the same."""
    slurm.fail("scancel")
    slurm.jobs("7")
    check(tmp_path, advised())
    check(tmp_path, advised())
    assert len(slurm.take_signals()) == 1
    assert "job 7: SIGUSR1 perhaps not sent, and not repeated" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["garbage\n", "7 a b\n", "7 \xe4\n", "7 a\n" * 100_000],
    ids=["word", "words", "no ASCII", "long"],
)
def test_a_record_that_is_none_signals_nothing(
    slurm: Slurm, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / FILE).write_bytes(text.encode())
    check(tmp_path, advised())
    assert slurm.take_signals() == []
    assert f"no job signalled: {tmp_path / 'record' / FILE}: " in capsys.readouterr().err


def test_a_link_is_not_followed(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / FILE).symlink_to(tmp_path / "elsewhere")
    check(tmp_path, advised())
    assert slurm.take_signals() == [] and not (tmp_path / "elsewhere").exists()
