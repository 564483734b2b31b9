"""
Asks root's brake before a node is handed to HyperPod, which reboots or replaces it.

What it needs is expensive to import, and is imported only for such a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def ask_brake(path: Path, node: str, verdict: Mapping[str, object], seconds: float) -> str:
    """Why not now; empty if the node may go. `path`: of the configuration; `node`: its name;
    `seconds`: for each program that is asked.
    """
    from dataclasses import replace

    from vitald.config_file import ConfigError
    from vitald.config_sections import Method
    from vitald.recovery import brake, files, inputs
    from vitald.recovery.scheduler import ActionContext

    try:
        config = inputs.read_config(path)
    except (files.Untrusted, ConfigError) as error:
        return f"the configuration does not count: {error}"
    deadline_s = max(0.1, min(seconds, config.recovery.deadline_s))
    recovery = replace(config.recovery, node=node, deadline_s=deadline_s)
    method = recovery.brake if recovery.brake.word != "scheduler" else Method(word="slurm")
    kind = "replace" if verdict.get("replacementConfirmed") is True else "reboot"
    context = ActionContext(
        action=kind, request_id="", verdict=verdict, boot_id=str(verdict.get("bootId", ""))
    )
    made = brake.create_brake(replace(config, recovery=recovery), method)
    return made.ask(context, take=True)
