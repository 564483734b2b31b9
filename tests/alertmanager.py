"""A real Alertmanager, which sends what it has to a webhook."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import free_port
from tests.pace import patient

_PROGRAM = "prometheus-alertmanager"


def find_program() -> str:
    """Skips the test without it; with CI=true it fails."""
    found = shutil.which(_PROGRAM)
    if found is None:
        reason = f"needs {_PROGRAM} (apt-get install {_PROGRAM})"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Alertmanager:
    """A context manager. `receiver`: URL of the webhook."""

    def __init__(self, folder: Path, receiver: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._folder = folder
        folder.mkdir()
        (folder / "alertmanager.yml").write_text(
            "route: {receiver: hook, group_by: [alertname, instance, code], group_wait: 0s,"
            " group_interval: 1s, repeat_interval: 1h}\n"
            f"receivers: [{{name: hook, webhook_configs: [{{url: '{receiver}'}}]}}]\n"
        )
        self._program: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Alertmanager:
        with (self._folder / "log").open("wb") as log:
            self._program = subprocess.Popen(
                [
                    find_program(),
                    f"--config.file={self._folder}/alertmanager.yml",
                    f"--storage.path={self._folder}/data",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                    "--cluster.listen-address=",
                ],
                stdout=log,
                stderr=log,
            )
        self.await_condition(self._is_ready)
        return self

    def __exit__(self, *_: object) -> None:
        if self._program is not None:
            self._program.kill()
            self._program.wait()

    def await_condition(self, holds: Callable[[], bool], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + patient(seconds)
        while not holds():
            assert time.monotonic() < deadline, (self._folder / "log").read_text()[-2000:]
            time.sleep(0.05)

    def list_alerts(self) -> list[dict[str, Any]]:
        """As its API gives them."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=patient(5)) as answer:
            alerts: list[dict[str, Any]] = json.load(answer)
        return alerts

    def _is_ready(self) -> bool:
        assert self._program is not None and self._program.poll() is None
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=patient(5)) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
