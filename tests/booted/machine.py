"""
A Debian machine in a container, booted with a systemd of its own.

Owns     the root file system (made once, kept in a cache), the container, commands in it, its
         reboot, and that nothing of it stays.
Refuses  a network, unless it is asked for one, and knowing what is tested.

The machine has a boot id, a journal, users and services of its own. The kernel, and with it the
kernel log, is the host's: whoever else writes there meanwhile is heard, so a test looks at what it
wrote itself. Source: systemd-nspawn(1), nsenter(1).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.waiting import until

SUITE = "bookworm"
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "udev",
    "libudev1",
    "python3",
    "python3-systemd",
    "procps",
    "curl",
)
CACHE = Path("/var/cache/vitald-booted")
_OLD_S = 14 * 86400.0
_REBOOT = 133  # the container asks to be started again
_ENVIRONMENT = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL=C.UTF-8",
    "DEBIAN_FRONTEND=noninteractive",
)

Done = subprocess.CompletedProcess[str]


def root_file_system(suite: str = SUITE, packages: Sequence[str] = PACKAGES) -> Path:
    """Of a minimal Debian with these packages. Made anew every two weeks."""
    key = hashlib.sha256(" ".join((suite, *packages)).encode()).hexdigest()[:8]
    kept = CACHE / f"{suite}-{key}"
    if kept.is_dir() and time.time() - kept.stat().st_mtime < _OLD_S:
        return kept
    CACHE.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{kept.name}.", dir=CACHE))
    try:
        command = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={','.join(packages)}",
            suite,
            str(made),
        ]
        subprocess.run(command, check=True, timeout=540)
        (made / "var/log/journal").mkdir(exist_ok=True)  # the journal is kept over a reboot
        (made / "etc/machine-id").write_text("")
        os.utime(made)
        shutil.rmtree(kept, ignore_errors=True)
        made.rename(kept)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return kept


class Machine:
    """One machine, from its first boot until it is thrown away."""

    def __init__(
        self,
        name: str,
        base: Callable[[], Path] = root_file_system,
        prepare: Callable[[Path], None] = lambda _: None,
        *,
        network: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        """`base`: the root file system that it begins with a copy of. `prepare`: changes that
        before the first boot. `network`: the host's, whose ports it shares. `options`: more of
        systemd-nspawn's.
        """
        self._base, self._prepare, self._options = base, prepare, options
        self.name = f"{name}-{os.getpid()}"
        self._network = [] if network else ["--private-network"]
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir="/var/tmp"))
        self.root = self.folder / "root"
        self.console = self.folder / "console"
        self._container: subprocess.Popen[bytes] | None = None
        self._leader = 0

    def __enter__(self) -> Machine:
        try:
            subprocess.run(
                ["cp", "-a", "--reflink=auto", str(self._base()), str(self.root)], check=True
            )
            self._prepare(self.root)
            self.boot()
        except BaseException:
            self._throw_away()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._throw_away()

    def boot(self) -> None:
        """Until systemd says that all has started."""
        command = [
            *(
                "systemd-nspawn",
                "--quiet",
                f"--directory={self.root}",
                "--boot",
                f"--machine={self.name}",
            ),
            *(
                "--register=no",
                "--keep-unit",
                *self._network,
                "--console=pipe",
                "--kill-signal=SIGRTMIN+3",
            ),
            *(
                "--bind=/dev/kmsg",
                "--capability=CAP_SYSLOG",
                "--system-call-filter=@clock",
                *self._options,
            ),
        ]
        with self.console.open("ab") as console:
            self._container = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                # As on every system that vitald runs on; the host may have the first version, too
                env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            )
        until(self._booted, "the machine to boot")

    def _booted(self) -> bool:
        assert self._container is not None
        assert self._container.poll() is None, (
            f"the container has ended:\n{self.console.read_text(errors='replace')[-4000:]}"
        )
        number = self._container.pid
        with suppress(OSError, IndexError):
            self._leader = int(
                Path(f"/proc/{number}/task/{number}/children").read_text().split()[0]
            )
            if Path(f"/proc/{self._leader}/comm").read_text() != "systemd\n":
                return False  # not in its name spaces yet: a command would run on the host
            return self.run(
                "systemctl", "is-system-running", "--wait", check=False
            ).stdout.strip() in ("running", "degraded")
        return False

    def reboot(self) -> None:
        """As a person would; on the same disk, with another boot id."""
        assert self._container is not None
        self.run("systemctl", "reboot", check=False)
        code = self._container.wait(60.0)
        assert code == _REBOOT, f"systemd-nspawn ended with {code}"
        self.boot()

    def argv(self, *command: str, user: str = "root") -> list[str]:
        """For a command that runs in the machine."""
        as_user = ["runuser", "-u", user, "--"] if user != "root" else []
        return [
            "nsenter",
            f"--target={self._leader}",
            "--all",
            "--",
            "env",
            "-i",
            *_ENVIRONMENT,
            *as_user,
            *command,
        ]

    def run(
        self,
        *command: str,
        user: str = "root",
        check: bool = True,
        timeout: float = 60.0,
        stdin: str | None = None,
    ) -> Done:
        done = subprocess.run(
            self.argv(*command, user=user),
            capture_output=True,
            text=True,
            timeout=timeout,
            input=stdin,
        )
        assert not check or done.returncode == 0, (
            f"{' '.join(command)}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
        return done

    def sh(self, script: str, *, check: bool = True, timeout: float = 60.0) -> str:
        """What a shell script prints."""
        return self.run("sh", "-euc", script, check=check, timeout=timeout).stdout

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", f"--property={name}", "--value", unit).stdout.strip()

    def _throw_away(self) -> None:
        """Its processes, its mounts (they end with its name space) and its disk."""
        container, self._container = self._container, None
        if container is not None and container.poll() is None:
            container.send_signal(signal.SIGTERM)  # an orderly power-off
            try:
                container.wait(20.0)
            except subprocess.TimeoutExpired:
                container.kill()
                with suppress(OSError):
                    os.kill(
                        self._leader, signal.SIGKILL
                    )  # the first process: with it goes every other one
                container.wait(20.0)
        shutil.rmtree(self.folder, ignore_errors=True)
