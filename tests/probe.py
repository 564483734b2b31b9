"""The health probe of the containers, as a kubelet runs it."""

from __future__ import annotations

import subprocess

from tests.harness import PYTHON, ROOT
from tests.waiting import WAIT_S

_SCRIPT = ROOT / "packaging/container/healthy"


def run_probe(place: str, elsewhere: str, *words: str) -> subprocess.CompletedProcess[str]:
    """With these words, and something in it at another place."""
    script = _SCRIPT.read_text("utf-8")
    assert place in script
    return subprocess.run(
        [PYTHON, "-IS", "-c", script.replace(place, elsewhere), *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
