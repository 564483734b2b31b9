"""
How the API server is reached: its address, its certificate authority, and who we are.

In a pod, everything is in the folder of the service account; elsewhere the configuration names
files or a program (client.authentication.k8s.io/v1), as a kubeconfig does. A token file is read
again when it has changed, because the kubelet and cloud agents rotate it.

Source: Kubernetes documentation, "Accessing the API from a Pod" and "client-go credential plugins".
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitald.timestamps import parse_rfc3339

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_TOKEN_BYTES = 64 * 1024
_EXEC_S = 15.0
_EARLY_S = 60.0  # a token is replaced so long before it expires


class NoCredentials(Exception):
    """The text names the file or the program, and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """The API server and the credentials for it. An empty `token_file` and `program`: the client
    certificate only.
    """

    server: str
    ca_file: Path | None = None
    token_file: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    program: tuple[str, ...] = ()

    def build_tls_context(self) -> ssl.SSLContext:
        """Raises NoCredentials."""
        try:
            context = ssl.create_default_context(
                cafile=None if self.ca_file is None else str(self.ca_file)
            )
            if self.client_certificate is not None:
                context.load_cert_chain(self.client_certificate, self.client_key)
        except (OSError, ssl.SSLError) as error:
            named = self.client_certificate or self.ca_file
            raise NoCredentials(f"{named}: {error}") from error
        return context


def find_cluster(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """The cluster that this pod runs in. Raises NoCredentials."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host:
        raise NoCredentials(
            "not in a pod (KUBERNETES_SERVICE_HOST is not set): set [kubernetes] server"
        )
    address = f"[{host}]" if ":" in host else host
    return ClusterAccess(
        server=f"https://{address}:{port or '443'}",
        ca_file=folder / "ca.crt",
        token_file=folder / "token",
    )


@dataclass(slots=True)
class TokenSource:
    """The bearer token of an access, "" if there is none."""

    access: ClusterAccess
    _token: str = field(default="", init=False)
    _stamp: tuple[int, int, int] = field(default=(0, 0, 0), init=False)
    _expires: float | None = field(default=None, init=False)

    async def read_token(self, now: float) -> str:
        """`now`: seconds since the epoch. Raises NoCredentials."""
        if self.access.program:
            if not self._token or (self._expires is not None and now > self._expires - _EARLY_S):
                self._token, self._expires = await _run_plugin(self.access.program)
        elif self.access.token_file is not None:
            self._read_file(self.access.token_file)
        return self._token

    def discard_token(self) -> None:
        """The API server refused it (401)."""
        self._token, self._stamp, self._expires = "", (0, 0, 0), None

    def _read_file(self, path: Path) -> None:
        try:
            # The kubelet replaces a link to a folder: the file's own data tell whether it changed.
            status = path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return
            with path.open("rb") as file:
                token = file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, ValueError) as error:
            raise NoCredentials(f"token file {path}: {error}") from error
        if not token or not token.isprintable():
            raise NoCredentials(f"token file {path}: holds no token")
        self._token, self._stamp = token, stamp


async def _run_plugin(program: Sequence[str]) -> tuple[str, float | None]:
    """The token that a credential plugin prints, and when it expires. Raises NoCredentials."""
    name = program[0]
    info = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *program,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(info)},
        )
    except OSError as error:
        raise NoCredentials(f"{name}: {error}") from error
    try:
        out, said = await asyncio.wait_for(process.communicate(), _EXEC_S)
    except asyncio.TimeoutError:
        raise NoCredentials(f"{name}: no answer within {_EXEC_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        reason = said.decode(errors="replace").strip()[-200:]
        raise NoCredentials(f"{name}: exit {process.returncode}: {reason}")
    try:
        status = json.loads(out)["status"]
        expires = status.get("expirationTimestamp")
        moment = None if expires is None else parse_rfc3339(expires).timestamp()
        return str(status["token"]), moment
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoCredentials(f"{name}: printed no ExecCredential with a token: {error!r}") from error
