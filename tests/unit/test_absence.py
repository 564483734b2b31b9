"""What a node without accelerators says: that there are none only where that was read."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, cast

import pytest

from vitald.cli import client, main, status
from vitald.server import schema

HINT = "if this node should have some, say how many"


def source(state: str) -> schema.ApiSource:
    return {"name": "nvml", "state": state, "lastRead": None, "deadline": None, "detail": "why"}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("not present", f"no GPU on PCI; {HINT}"),
        ("failed", "which GPUs there are is unknown: source nvml is failed: why"),
        ("starting", "which GPUs there are is unknown: source nvml is starting: why"),
    ],
)
def test_gpus(
    state: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "get", lambda *_: {"gpus": [], "source": source(state)})
    assert main(["gpus"]) == 0
    assert capsys.readouterr().out.startswith(text)


@pytest.mark.parametrize(
    ("state", "kinds", "findings", "shown"),
    [
        ("not present", [], [], True),
        ("ok", ["nic"], [], True),
        ("ok", ["gpu"], [], False),
        ("ok", ["neuron"], [], False),
        ("failed", [], [], False),
        ("starting", [], [], False),
        ("ok", [], [{"id": 1, "accepted": None, "action": "inspect", "when": "now"}], False),
    ],
)
def test_status(
    state: str,
    kinds: list[str],
    findings: list[dict[str, object]],
    shown: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer: dict[str, Any] = {
        **dict.fromkeys(("rebootRequired", "replacementRequired", "simulated"), False),
        **{name: [] for name in ("incidents", "suspects")},
        "sources": [source(state)],
        "findings": findings,
        "components": [
            {"kind": kind, "name": f"{kind}/0", "status": "healthy", "attributes": {"pci": "0"}}
            for kind in kinds
        ],
        "host": "n",
        "status": "healthy",
        "ledger": {"ok": True},
        "kernelLog": {"recordsLost": 0, "untrusted": 0},
        "profile": "nvidia",
        "version": "1",
        "startedAt": datetime.now(timezone.utc).isoformat(),
    }
    status.show_status(cast("schema.NodeStatus", answer))
    assert (HINT in capsys.readouterr().out) is shown
