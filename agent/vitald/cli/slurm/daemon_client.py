"""
The requests of Slurm's scripts to the daemon, each within the script's remaining time.

Owns     the deadline of all requests together, and the diagnostic before a job; the settings of the
         scripts, of which a mistake in the file affects only its own key.
Refuses  deciding what an answer means for the job; other sections than the scripts need, which take
         longer to read than all the rest of a prolog.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from vitald.cli import client
from vitald.config.errors import ConfigError, FileReport
from vitald.config.file import DEFAULT_PATH, read_file, read_sections
from vitald.config.paths import PATHS, Paths
from vitald.server import endpoints
from vitald.server.endpoint import Answer, Body, Get, Post
from vitald.server.settings import SOCKET, SocketSettings, find_socket
from vitald.slurm.report import report
from vitald.slurm.settings import SLURM, SlurmSettings

if TYPE_CHECKING:
    from vitald.server import schema


FOR_SCONTROL = 0.25  # of the prolog's budget
SCONTROL_S = 5.0  # where no job waits
_POLL_S = 0.05


class DaemonClient:
    """Asks the daemon until a moment on the monotonic clock, and no longer."""

    def __init__(self, socket: Path | None, end: float) -> None:
        self._socket = socket
        self._end = end

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def read_verdict(self, share: float = 1.0) -> schema.NodeStatus:
        """What it thinks of a job about to begin, within a share of the time left.

        Raises NoAnswer, DaemonRefused.
        """
        return client.read_status(self._build_arguments(share), work="prolog")

    def get(self, endpoint: Get[Answer]) -> Answer:
        """Raises NoAnswer, DaemonRefused."""
        return client.get(self._build_arguments(), endpoint)

    def post(self, endpoint: Post[Body, Answer], body: Body) -> Answer:
        """Raises as `get`."""
        return client.post(self._build_arguments(), endpoint, body)

    def report_job(
        self, event: Literal["begin", "end"], job: Mapping[str, Any]
    ) -> schema.JobReported:
        """Report that a job begins, or has ended. Raises as `get`."""
        return self.post(
            endpoints.REPORT_JOB, cast("schema.ReportJobRequest", {"event": event, **job})
        )

    def report_state(self, state: Literal["drained", "in_service"]) -> None:
        """Report what Slurm has done with the node. Only a metric depends on it."""
        body: schema.SchedulerRequest = {"state": state}
        with suppress(client.NoAnswer, client.DaemonRefused):
            self.post(endpoints.REPORT_SCHEDULER, body)

    def _build_arguments(self, share: float = 1.0) -> argparse.Namespace:
        timeout = max(0.01, self.seconds_left * share)
        return argparse.Namespace(socket=self._socket, timeout=timeout)


def run_level_1(settings: ScriptSettings, daemon: DaemonClient, job: str) -> bool:
    """Run a diagnostic where the last one is too old and there is time. Whether one has ended."""
    for_scontrol_s = settings.budget_s * FOR_SCONTROL
    try:
        shown = daemon.get(endpoints.DIAGNOSTICS)
        active = _find_level_1(shown)
        # What one that has just ended found is in the verdict once it is no longer active.
        if active is None or active["stage"] != "ending":
            time_left = daemon.seconds_left - for_scontrol_s
            if not _is_level_1_due(settings, shown, time_left):
                return False
        active = active or _request_level_1(daemon, job)
        while daemon.seconds_left > for_scontrol_s:
            shown = daemon.get(endpoints.DIAGNOSTICS)
            if all(run["id"] != active["id"] for run in shown["active"]):
                return True
            time.sleep(_POLL_S)
        report("the level 1 diagnostic has not ended in time: going by the verdict before it")
    except (client.NoAnswer, client.DaemonRefused, KeyError, TypeError, ValueError) as error:
        report(f"no level 1 diagnostic: {error}")
    return False


def _is_level_1_due(
    settings: ScriptSettings, shown: schema.ApiDiagnostics, time_left: float
) -> bool:
    """Whether the last one is too old, and as long a run fits into the time left, in seconds."""
    from vitald.cli import render  # most prologs do without

    last = next((run for run in shown["last"] if (run["check"], run["level"]) == ("dcgm", 1)), None)
    if last is None:
        return True
    ended = render.parse_time(last["ended"])
    if ended is not None:
        age = datetime.now(timezone.utc) - ended
        if age.total_seconds() <= settings.level_1_age_s:
            return False
    took = last["seconds"]
    if took > time_left:
        left = f"{max(0.0, time_left):.1f} s are left"
        report(f"no time for a level 1 diagnostic: the last one took {took} s, and {left}")
        return False
    return True


def _request_level_1(daemon: DaemonClient, job: str) -> schema.ActiveDiagnostic:
    body: schema.RunDiagnosticRequest = {
        "check": "dcgm",
        "level": 1,
        "reason": f"the prolog of job {job}",
    }
    try:
        return daemon.post(endpoints.RUN_DIAGNOSTIC, body)["active"]
    except client.DaemonRefused:
        # The prolog of a concurrent job was quicker.
        active = _find_level_1(daemon.get(endpoints.DIAGNOSTICS))
        if active is None:
            raise
        return active


def _find_level_1(shown: schema.ApiDiagnostics) -> schema.ActiveDiagnostic | None:
    """The level 1 run of all GPUs that is queued or active, from any requester."""
    for run in shown["active"]:
        if (run["check"], run["level"], run["gpus"]) == ("dcgm", 1, []):
            return run
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSettings(SlurmSettings):
    """`[slurm]`, where the daemon listens if that is configured, and the file: its [recovery] has
    the brake.
    """

    socket: Path | None = None
    config: Path = DEFAULT_PATH


def read_settings(path: Path) -> ScriptSettings:
    """The settings of a file, or the defaults if there is none. Raises nothing for a mistake in it:
    that is reported, and the default is used.
    """
    if not path.exists():
        return ScriptSettings(config=path)
    try:
        text, tables = read_file(path)
    except ConfigError as error:
        report(f"{error}: going by the defaults")
        return ScriptSettings(config=path)
    mistakes = FileReport(str(path), text)
    config = read_sections(tables, (SLURM, SOCKET, PATHS), mistakes)
    for mistake in mistakes.errors:
        report(f"{mistake}: going by the default")
    default = SocketSettings().path, Paths().runtime
    is_set = (config[SocketSettings].path, config[Paths].runtime) != default
    given = config[SlurmSettings]
    return ScriptSettings(
        **{item.name: getattr(given, item.name) for item in fields(given)},
        socket=find_socket(config) if is_set else None,
        config=path,
    )
