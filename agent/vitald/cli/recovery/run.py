"""
`vitald recovery run`: what vitald-recover.service runs, as root, when the daemon has requested a
reboot or a replacement. One attempt per call (agent/vitald/recovery/attempt.py).

    0    decided: refused, drained, or done (standard error, `vitald recovery status` and the
         journal have the decision and its reason)
    69   the action failed, or the directory of the action log cannot be used
    78   the configuration is wrong, or others than root may write it
"""

from __future__ import annotations

import argparse
import os
import socket
import stat
import struct
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitald.cli import EX_CONFIG, client
from vitald.config.errors import ConfigError
from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.diagnostics.idle.detector import IdleDetector, Use
from vitald.diagnostics.settings import DiagnosticsSettings
from vitald.recovery import files, inputs, programs
from vitald.recovery.attempt import DaemonReport, RecoveryAttempt, find_reader_group
from vitald.recovery.decision import DaemonState, OpenFinding
from vitald.recovery.decision_log import emit_log_line
from vitald.server import endpoints
from vitald.server.endpoint import MAX_PAGE
from vitald.server.settings import find_socket

if TYPE_CHECKING:
    from vitald.server import schema

_DAEMON_TIMEOUT_S = 5.0
_PEER = (socket.SOL_SOCKET, socket.SO_PEERCRED)
_SYSTEMD = 1
_UNIT = "/vitald.service"


def run_attempt(arguments: argparse.Namespace) -> int:
    kept = programs.clean_environment(os.environ)
    journal = os.environ.get("JOURNAL_STREAM", "")  # for our own log; programs do not get it
    os.environ.clear()
    os.environ.update(kept, JOURNAL_STREAM=journal)
    os.umask(0o027)
    try:
        config = inputs.read_config(arguments.config)
    except files.Untrusted as error:
        why = f"the configuration does not count: {error}"
        emit_log_line("text", "error", "recovery_refused", why=why)
        return EX_CONFIG
    except ConfigError as error:
        why = "the configuration is wrong"
        emit_log_line("text", "error", "recovery_refused", why=why, errors=error.errors)
        return EX_CONFIG
    return start_attempt(config, dry_run=arguments.dry_run).run()


def start_attempt(config: Config, *, dry_run: bool) -> RecoveryAttempt:
    return RecoveryAttempt(
        config,
        dry_run=dry_run,
        owners=client.find_owners(),
        reader_group=find_reader_group(client.DAEMON_USER),
        query_daemon=query_daemon,
        find_device_users=lambda config, pid: [use.words for use in find_device_uses(config, pid)],
    )


def query_daemon(config: Config, timeout_s: float = _DAEMON_TIMEOUT_S) -> DaemonReport:
    """What the daemon reports within `timeout_s`, over a socket that only it and root can have
    created.
    """
    path, end = find_socket(config), time.monotonic() + timeout_s

    def address() -> argparse.Namespace:
        return argparse.Namespace(socket=path, timeout=max(0.01, end - time.monotonic()))

    try:
        folder = path.parent.resolve(strict=True)
        files.check_folders(folder, client.find_owners())
        found = (folder / path.name).lstat()
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid not in client.find_owners():
            return DaemonReport(None, f"{path} is not the daemon's socket", {})
        status = client.read_status(address())
        findings = client.get(address(), endpoints.FINDINGS, limit=MAX_PAGE)
        jobs = client.get(address(), endpoints.JOBS, limit=MAX_PAGE)
        runs = client.get(address(), endpoints.DIAGNOSTICS)["active"]
        if findings["more"]:  # one of the others may be in remedy
            many = f"more than {MAX_PAGE} findings are open, and not all are known"
            return DaemonReport(None, many, {})
        state = read_daemon_state(status, findings, jobs, runs)
        pid = _find_daemon_pid(path, status, config[Paths].procfs)
        return DaemonReport(replace(state, pid=pid), "", status)
    except (client.NoAnswer, client.DaemonRefused, files.Untrusted) as error:
        return DaemonReport(None, str(error), {})
    except OSError as error:
        return DaemonReport(None, f"{path}: {error.strerror}", {})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        trouble = f"its answer is not understood: {type(error).__name__}: {error}"
        return DaemonReport(None, trouble, {})


def find_device_uses(config: Config, daemon_pid: int) -> tuple[Use, ...]:
    """The processes that use the devices, read here: the daemon may not read their open files."""
    detector = IdleDetector(
        config[Paths].procfs,
        own=(daemon_pid,),
        ignored=config[DiagnosticsSettings].ignore_processes,
    )
    return detector.find_device_users()


def _find_daemon_pid(path: Path, status: schema.NodeStatus, procfs: Path) -> int:
    """The daemon's process id, in our own namespace; 0 if none can be believed. Without systemd it
    listens itself, and the kernel knows it. Else it says which it is, and must be of its unit: it
    could hide the processes of another.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.settimeout(_DAEMON_TIMEOUT_S)
        listener.connect(str(path))
        pid, _, _ = struct.unpack("3i", listener.getsockopt(*_PEER, 12))
    if pid != _SYSTEMD:
        return int(pid)
    pid = _read_id(status["pid"])
    cgroups = (procfs / str(pid) / "cgroup").read_text("utf-8", "replace").splitlines()
    return pid if any(line.endswith(_UNIT) for line in cgroups) else 0


def read_daemon_state(
    status: schema.NodeStatus,
    findings: schema.Findings,
    jobs: schema.ApiJobs,
    runs: Sequence[schema.ActiveDiagnostic],
) -> DaemonState:
    """The daemon's answers as facts. Raises KeyError, TypeError, ValueError, AttributeError for an
    answer of another shape.
    """
    opened = {_read_id(found["id"]): _read_finding(found) for found in findings["findings"]}
    has_drill = any(found.simulated for found in opened.values())
    released = [
        str(source["detail"] or "released")
        for source in status["sources"]
        if source["state"] == "released"
    ]
    return DaemonState(
        findings=opened,
        reboot_required=status["rebootRequired"] is True,
        replacement_required=status["replacementRequired"] is True,
        reboot_confirmed=status.get("rebootConfirmed") is True,
        replacement_confirmed=status.get("replacementConfirmed") is True,
        # If no finding is a drill's, the devices themselves are simulated.
        simulated=status["simulated"] is not False and not has_drill,
        released="; ".join(released),
        jobs=tuple(_describe_job(job) for job in jobs["running"]),
        diagnostic=next((_describe_run(run) for run in runs if run["stage"] != "waiting"), ""),
        boot_id=str(status["bootId"]),
    )


def _read_finding(found: schema.ApiFinding) -> OpenFinding:
    deferred = found["when"] == "maintenance" and found["unusable"] is not True
    return OpenFinding(
        component=str(found["component"]),
        code=str(found["code"]),
        action=str(found["action"]),
        state=str(found["state"]),
        simulated=found["simulated"] is not False,  # anything but a plain no is a yes
        deferred=found["accepted"] is not None or deferred,
        confirmed=found.get("confirmed") is True,
    )


def _describe_job(job: schema.ApiJob) -> str:
    return f"job {job['job']}" + (f" of {job['user']}" if job["user"] else "")


def _describe_run(run: schema.ActiveDiagnostic) -> str:
    level = f" level {run['level']}" if run["level"] else ""
    reason = f" ({run['reason']})" if run["reason"] else ""
    return f"a diagnostic runs: {run['check']}{level}, for {run['by']}{reason}"


def _read_id(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value
