"""What keeps the resident memory of the processes that run for long small."""

from __future__ import annotations

import os
from contextlib import suppress

_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 128 * 1024  # mallopt(3); its own default
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # SSL_CTX_set_default_verify_paths(3)


def import_aiohttp() -> None:
    """Import aiohttp without the system's certificate authorities.

    It loads them twice as it is imported (aiohttp/connector.py, _make_ssl_context), which takes
    1.7 MiB. Nothing here uses these contexts: the daemon makes no TLS connection, and the publisher
    has a context of its own.
    """
    before = {name: os.environ.get(name) for name in _CERTIFICATES}
    os.environ.update(dict.fromkeys(_CERTIFICATES, os.devnull))
    try:
        import aiohttp  # noqa: F401
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def return_memory_early() -> None:
    """Have large blocks of memory given back to the kernel as soon as they are free.

    glibc begins with that, but raises the threshold to the largest block that it ever got back, up
    to 32 MiB, and then keeps what a reopened ledger or a long answer leaves behind: resident memory
    went up with each, in steps (docs/decisions.md). To set it is to hold it there.
    """
    import ctypes

    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
