"""
A server that answers as NCCL RAS does, written from NCCL 2.30.7: the commands in
src/ras/client_support.cc (rasClientEventLoop), the documents as its json functions print them, the
report in words as the user guide shows it ("RAS", "Sample Output").
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def rank(number: int, counts: Mapping[str, int], host: str = "172.16.64.210") -> Json:
    return {
        **place(number, host),
        "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
        },
        "collective_counts": {"Broadcast": 0, "AllReduce": 0, **counts},
    }


def missing(number: int, *, dead: bool = False, host: str = "172.16.64.213") -> Json:
    return {**place(number, host), "status": {"unresponsive": True, "considered_dead": dead}}


def place(number: int, host: str) -> Json:
    device = number % 8
    return {
        "rank": number,
        "host": host,
        "pid": 483072 + number,
        "cuda_dev": device,
        "nvml_dev": device,
    }


def communicator(ranks: Sequence[Json], absent: Sequence[Json] = ()) -> Json:
    return {
        "hash": "0x27a079b828ff1a75",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(ranks) + len(absent),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(absent),
        "ranks": list(ranks),
        "missing_ranks": list(absent),
    }


def document(*communicators: Json, version: str = "2.30.7") -> bytes:
    answer = {
        "nccl_version": version,
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-19 13:06:53",
        "communicators_count": len(communicators),
        "communicators": list(communicators),
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }
    return json.dumps(answer, indent=2).encode() + b"\n"


class RasServer:
    """Listens on a port of the loopback address, a free one by default. `answer` makes what
    `STATUS` is answered with; `knows_json` is false before NCCL 2.28.7.
    """

    def __init__(
        self, answer: Callable[[], bytes], *, knows_json: bool = True, port: int = 0
    ) -> None:
        self.answer = answer
        self.knows_json = knows_json
        self.commands: list[str] = []
        self.port = port
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> RasServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                command = line.decode().strip()
                self.commands.append(command)
                if command == "STATUS":
                    writer.write(self.answer())
                    await writer.drain()
                    return
                writer.write(self._reply(command).encode())
        finally:
            writer.close()

    def _reply(self, command: str) -> str:
        if command.startswith("CLIENT PROTOCOL "):
            return "SERVER PROTOCOL 2\n"
        if command.startswith("TIMEOUT ") or (command.startswith("SET FORMAT") and self.knows_json):
            return "OK\n"
        return f"ERROR: Unknown command {command}\n"
