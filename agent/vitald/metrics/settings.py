"""`[metrics]` of the configuration: the Prometheus endpoint."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from vitald.checking import Unexpected
from vitald.config.readers import one_of, read_nonempty_text
from vitald.config.section import Section, setting


@dataclass(frozen=True, slots=True)
class Listen:
    """An address to listen on; `off` is no address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _read_listen(value: object) -> Listen | None:
    text = read_nonempty_text(value)
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
        if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise ValueError(port)
    except ValueError:
        raise Unexpected('an address and port such as "127.0.0.1:9820", or "off"', value) from None
    return Listen(host, int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The Prometheus endpoint."""

    listen: Listen | None = setting(
        Listen("127.0.0.1", 9820), _read_listen, 'Address and port, or "off".'
    )
    nvlink: str = setting(
        "sum",
        one_of("sum", "each"),
        '"sum": one value for all NVLinks of a GPU. "each": one a link, with the label link.',
    )


METRICS = Section(name="metrics", settings=MetricsSettings)
