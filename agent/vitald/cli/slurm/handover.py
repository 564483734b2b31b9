"""
Why a node may not be handed to HyperPod now, which reboots or replaces it after its jobs: who is at
work on it, and root's brake.

What it needs is expensive to import, and is imported only for such a node.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitald.config.values import Config


def find_obstacle(path: Path, node: str, verdict: Mapping[str, object], seconds: float) -> str:
    """Why not now; empty if the node may go. `path`: of the configuration; `node`: its name;
    `seconds`: for each program that is asked, and for the daemon.
    """
    from vitald.config.errors import ConfigError
    from vitald.recovery import files, inputs

    end = time.monotonic() + seconds
    try:
        config = inputs.read_config(path)
    except (files.Untrusted, ConfigError) as error:
        return f"the configuration does not count: {error}"
    at_work = _find_presence(config, seconds)
    return at_work or _ask_brake(config, node, verdict, end - time.monotonic())


def _find_presence(config: Config, seconds: float) -> str:
    """Slurm's jobs are left out: HyperPod waits for them."""
    from vitald.cli.recovery.run import find_device_uses, query_daemon
    from vitald.recovery import inputs
    from vitald.recovery.decision import Presence, describe_presence
    from vitald.recovery.settings import RecoverySettings

    answer = query_daemon(config, seconds)
    if answer.state is None:
        return f"who is at work is not known: {answer.trouble}"
    uses = find_device_uses(config, answer.state.pid)
    return describe_presence(
        Presence(
            now=inputs.read_clock(config),
            min_uptime_s=config[RecoverySettings].min_uptime_s,
            daemon=answer.state,
            device_users=tuple(use.words for use in uses if not use.job),
        )
    )


def _ask_brake(config: Config, node: str, verdict: Mapping[str, object], seconds: float) -> str:
    from dataclasses import replace

    from vitald.recovery import brake
    from vitald.recovery.scheduler import ActionContext
    from vitald.recovery.settings import Method, RecoverySettings

    deadline_s = max(0.1, min(seconds, config[RecoverySettings].deadline_s))
    recovery = replace(config[RecoverySettings], node=node, deadline_s=deadline_s)
    method = recovery.brake if recovery.brake.word != "scheduler" else Method(word="slurm")
    kind = "replace" if verdict.get("replacementConfirmed") is True else "reboot"
    context = ActionContext(
        action=kind, request_id="", verdict=verdict, boot_id=str(verdict.get("bootId", ""))
    )
    made = brake.create_brake(config.replace(recovery), method)
    return made.ask(context, take=True)
