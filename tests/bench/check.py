"""
check: how long `vitald check` takes, as a scheduler's prolog calls it.

The installed command and `python -m vitald check`, by turns with Python doing nothing at all: with
its site packages, and without them.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from tests.bench.measure import (
    PYTHON,
    ROOT,
    SETTLE_S,
    Json,
    command,
    environment,
    less,
    load,
    node,
    scratch,
    spread,
    timed,
)

ROUNDS = 20
_SCRIPT = Path(PYTHON).with_name("vitald")


def run() -> Json:
    with scratch() as folder, node(folder) as running:
        time.sleep(SETTLE_S)
        asked = ["check", "--socket", str(running.socket)]
        commands = {
            "vitald": [str(_SCRIPT), *asked],
            "python_m_vitald": command("-m", "vitald", *asked),
            "status": command("-m", "vitald", "status", *asked[1:]),
            "floor_python": command("-c", "pass"),
            "floor_python_isolated": command("-I", "-S", "-c", "pass"),
        }
        if not _SCRIPT.exists():
            del commands["vitald"]
        extra = {**os.environ, **environment(folder)}
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS + 1):
            for name, words in commands.items():
                seconds, done = timed(
                    lambda words=words: subprocess.run(
                        words, env=extra, cwd=ROOT, capture_output=True, check=False
                    )
                )  # type: ignore[misc]
                assert done.returncode == 0, done
                times[name].append(seconds)
    figures = {
        name: spread(taken[1:]) for name, taken in times.items()
    }  # the first fills the caches
    floor = figures["floor_python"]
    beyond: Json = {
        name: less(measured, floor)
        for name, measured in figures.items()
        if not name.startswith("floor")
    }
    return {"unit": "ms", **figures, "difference": beyond, "load": load()}
