"""
The API server through `kubectl proxy`, with the credentials of a kubeconfig, all kinds of which
kubectl knows. The proxy listens on a socket that only this user can reach.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from vitald.publish.kubernetes.credentials import ClusterAccess, NoCredentials

_START_S, _POLL_S = 10.0, 0.05


@asynccontextmanager
async def open_proxy(kubeconfig: Path) -> AsyncIterator[ClusterAccess]:
    """While the context lasts. kubectl's errors go to standard error. Raises NoCredentials."""
    with tempfile.TemporaryDirectory(prefix="vitald-") as folder:
        path = Path(folder) / "api"
        command = ("kubectl", "proxy", f"--kubeconfig={kubeconfig}", f"--unix-socket={path}")
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
            )
        except OSError as error:
            raise NoCredentials(f"--kubeconfig needs kubectl: {error}") from error
        try:
            await _wait_until_there(path, process)
            yield ClusterAccess(server="http://localhost", socket=path)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _wait_until_there(path: Path, process: asyncio.subprocess.Process) -> None:
    deadline = time.monotonic() + _START_S
    while not path.exists():
        if process.returncode is not None:
            raise NoCredentials(f"kubectl proxy: exit {process.returncode}")
        if time.monotonic() > deadline:
            raise NoCredentials(f"kubectl proxy: not ready within {_START_S:g} s")
        await asyncio.sleep(_POLL_S)
