"""A real Prometheus in a folder, which scrapes what it is given every second."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.harness import free_port
from tests.pace import patient

Json = dict[str, Any]


_LARGE_FLEET = Path(__file__).parents[1] / "packaging/prometheus/scrape-large-fleet.yml"


def _read_verdict_filter() -> Json:
    """What keeps the families of the verdict from being stored twice."""
    _, full = yaml.safe_load(_LARGE_FLEET.read_text("utf-8"))["scrape_configs"]
    dropped: Json = full["metric_relabel_configs"][0]
    return dropped


def find_prometheus() -> str | None:
    return shutil.which("prometheus")


class Prometheus:
    """`targets`: host:port of each node, with its labels. They are scraped as big fleets are: job
    `vitald` has the verdict, job `vitald-full` all other metrics. Job `node` is none of vitald: its
    one target is dead.
    """

    def __init__(self, folder: Path, targets: Mapping[str, Mapping[str, str]]) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        static: list[Json] = [
            {"targets": [target], "labels": dict(labels)} for target, labels in targets.items()
        ]
        (folder / "prometheus.yml").write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
                    "scrape_configs": [
                        {
                            "job_name": "vitald",
                            "params": {"collect[]": ["verdict"]},
                            "static_configs": static,
                        },
                        {
                            "job_name": "vitald-full",
                            "static_configs": static,
                            "metric_relabel_configs": [_read_verdict_filter()],
                        },
                        {
                            "job_name": "node",
                            "static_configs": [{"targets": [f"127.0.0.1:{free_port()}"]}],
                        },
                    ],
                }
            )
        )

    def __enter__(self) -> Prometheus:
        program = find_prometheus()
        assert program is not None
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={self.folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self.folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )
        self._wait_until_ready(20.0)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(patient(10.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
        if kind is not None:
            print((self.folder / "log").read_text()[-4000:])

    def _wait_until_ready(self, seconds: float) -> None:
        limit = patient(seconds)
        end = time.monotonic() + limit
        while time.monotonic() < end:
            with suppress(urllib.error.URLError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5.0).close()
                return
            time.sleep(0.1)
        raise AssertionError(f"waited {limit:g} s for Prometheus to start")

    def query(self, expression: str) -> Sequence[Json]:
        """The series of an instant query. Raises AssertionError with what Prometheus says against
        it.
        """
        words = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{words}"
        try:
            with urllib.request.urlopen(url, timeout=patient(5.0)) as answer:
                found: Sequence[Json] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{expression}: {refused.read().decode()}") from None
        return found

    def wait_for(self, expression: str, seconds: float = 15.0) -> Sequence[Json]:
        """The first result that has series."""
        limit = patient(seconds)
        end = time.monotonic() + limit
        while True:
            if found := self.query(expression):
                return found
            if time.monotonic() > end:
                raise AssertionError(f"waited {limit:g} s for {expression}")
            time.sleep(0.1)
