"""A Slurm that is not asked: the calls of scontrol, and the verdicts that lead to them."""

from __future__ import annotations

import pytest

from vitald.slurm import scontrol
from vitald.slurm.scontrol import SlurmNode


def verdict(
    status: str = "unhealthy",
    reason: str = "gpu/0000:65:00.0: broken (xid/79): reboot the node",
    **more: object,
) -> dict[str, object]:
    flags = {
        "rebootRequired": True,
        "rebootConfirmed": True,
        "replacementRequired": False,
        "replacementConfirmed": False,
    }
    return {"status": status, "reasons": [reason], **flags, "simulated": False, **more}


def show_node(node: SlurmNode) -> str:
    """A node as scontrol shows it."""
    reason = f"   Reason={node.reason} [root@2026-11-21T21:12:13]\n" if node.reason else ""
    comment = f"   Comment={node.comment}\n" if node.comment else ""
    return f"NodeName=gpu01 CPUs=2\n   State={'+'.join(sorted(node.states))} \n{comment}{reason}"


def record_scontrol(
    monkeypatch: pytest.MonkeyPatch,
    shown: str = "",
    problem: str = "",
) -> list[list[str]]:
    """The arguments of each call of scontrol from now on: none is made; each has this answer."""
    asked: list[list[str]] = []

    def run(arguments: list[str], seconds: float) -> tuple[str, str]:
        assert seconds > 0
        asked.append(arguments)
        return shown, problem

    monkeypatch.setattr(scontrol, "run_scontrol", run)
    return asked
