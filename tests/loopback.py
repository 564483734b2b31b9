"""An HTTP server on loopback, for tests of what is sent to others."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

S = TypeVar("S", bound="LoopbackServer")


def _write_no_log(*_: object) -> None:
    """A test's output is no access log."""


class LoopbackServer:
    """Serves in threads while its context lasts. HTTPS where `certificate` is given: the path of
    the .crt, beside which its .key lies. `port`: 0 for any that is free.
    """

    def __init__(
        self,
        handler: type[BaseHTTPRequestHandler],
        *,
        port: int = 0,
        certificate: Path | None = None,
    ) -> None:
        quiet = type(handler.__name__, (handler,), {"log_message": _write_no_log})
        self._http = ThreadingHTTPServer(("127.0.0.1", port), quiet)
        self._http.daemon_threads = True
        self.port: int = self._http.server_port
        self.origin = f"http://127.0.0.1:{self.port}"
        if certificate is not None:
            self.origin = f"https://127.0.0.1:{self.port}"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            # The handshake is the handler's: a client that is slow at it delays no other.
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )

    def __enter__(self: S) -> S:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
