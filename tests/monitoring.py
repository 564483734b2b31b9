"""What a site monitors vitald with: a real Prometheus, a real Alertmanager, and a receiver of its
messages.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import yaml

from tests.conftest import require
from tests.harness import ROOT, free_port
from tests.waiting import WAIT_S, until

Json = dict[str, Any]
R = TypeVar("R", bound="JsonReceiver")


class _Server:
    """A program with an HTTP port, its files in a folder."""

    program: str

    def __init__(self, folder: Path) -> None:
        require(shutil.which(self.program), f"{self.program} (apt-get install {self.program})")
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    def _list_arguments(self) -> Sequence[str]:
        raise NotImplementedError

    def __enter__(self) -> Any:
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [self.program, *self._list_arguments()], stdout=log, stderr=log
            )
        until(self._is_ready, self._read_log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: object, __: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(WAIT_S)
        if kind is not None:
            print(self._read_log())

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}{path}", timeout=WAIT_S
        ) as response:
            return json.loads(response.read())

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _is_ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=WAIT_S).close()
        except OSError:
            return False
        return True

    def _read_log(self) -> str:
        return f"{self.program}: {(self.folder / 'log').read_text()[-4000:]}"


class Prometheus(_Server):
    """`config`: as in prometheus.yml."""

    program = "prometheus"

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder)
        self._write_config(config)

    def _list_arguments(self) -> Sequence[str]:
        return [
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            "--storage.tsdb.retention.time=30d",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def reload(self, config: Mapping[str, Any]) -> None:
        self._write_config(config)
        os.kill(self.pid, signal.SIGHUP)

    def _write_config(self, config: Mapping[str, Any]) -> None:
        text = yaml.safe_dump(dict(config))
        (self.folder / "prometheus.yml").write_text(text, encoding="utf-8")

    def query(self, expression: str) -> list[Json]:
        """The series of an instant query."""
        words = urllib.parse.urlencode({"query": expression})
        result: list[Json] = self.get(f"/api/v1/query?{words}")["data"]["result"]
        return result

    def wait_until_scraped(self, count: int) -> None:
        """Each target at least once; none with an error."""

        def list_targets() -> list[Json]:
            targets: list[Json] = self.get("/api/v1/targets")["data"]["activeTargets"]
            return targets

        until(
            lambda: [target["health"] != "unknown" for target in list_targets()] == [True] * count,
            "Prometheus to scrape",
        )
        assert {(target["health"], target["lastError"]) for target in list_targets()} == {
            ("up", "")
        }


def make_config(
    addresses: Mapping[str, str],
    rules: Path,
    *,
    scrape: str = "scrape",
    alertmanager: str = "",
) -> Json:
    """Of a Prometheus that scrapes vitald each second. `addresses`: by the name of their node.
    `scrape`: the shipped file with the jobs. `alertmanager`: its address, if there is one.
    """
    path = ROOT / f"packaging/prometheus/{scrape}.yml"
    own = {
        "scrape_interval": "1s",
        "static_configs": [
            {"targets": [address], "labels": {"instance": name, "cluster": "c1"}}
            for name, address in addresses.items()
        ],
        "relabel_configs": [],
    }
    jobs = yaml.safe_load(path.read_text("utf-8"))["scrape_configs"]
    servers = [{"static_configs": [{"targets": [alertmanager]}]}] if alertmanager else []
    return {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{**job, **own} for job in jobs],
        "alerting": {"alertmanagers": servers},
    }


class Alertmanager(_Server):
    """`config`: the text of alertmanager.yml."""

    program = "prometheus-alertmanager"

    def __init__(self, folder: Path, config: str) -> None:
        super().__init__(folder)
        (folder / "alertmanager.yml").write_text(config, encoding="utf-8")

    def _list_arguments(self) -> Sequence[str]:
        return [
            f"--config.file={self.folder / 'alertmanager.yml'}",
            f"--storage.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--cluster.listen-address=",
        ]

    def list_alerts(self) -> list[Json]:
        alerts: list[Json] = self.get("/api/v2/alerts")
        return alerts


@dataclass(frozen=True, slots=True)
class Received:
    """An alert in a message of Alertmanager. `path`: that of the URL it was sent to."""

    path: str
    alert: Json


class JsonReceiver:
    """An HTTP server on loopback. `take` is called with the path and the document of each POST, in a
    thread of the server.
    """

    def __init__(self, take: Callable[[str, Json], object]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                take(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port

    def __enter__(self: R) -> R:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class AlertReceiver(JsonReceiver):
    """Keeps what Alertmanager sends to it as a webhook. `arrived` is called with each."""

    def __init__(self, arrived: Callable[[Received], object] = lambda _: None) -> None:
        super().__init__(self._take)
        self.received: list[Received] = []
        self._arrived = arrived

    def _take(self, path: str, message: Json) -> None:
        for alert in message["alerts"]:
            received = Received(path, alert)
            self.received.append(received)
            self._arrived(received)

    def select(self, alert: str, status: str) -> list[Received]:
        """The alerts of this name that are `firing` or `resolved`."""
        return [
            each
            for each in list(self.received)
            if each.alert["labels"]["alertname"] == alert and each.alert["status"] == status
        ]
