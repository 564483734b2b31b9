"""`[cloud]` of the configuration: keys, defaults and help."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from vitald import tomlfile
from vitald.checking import Unexpected, read_match
from vitald.model.cloud_notice import Provider
from vitald.settings import one_of, setting

_LEAST_PERIOD_S, _MOST_PERIOD_S = 1.0, 60.0


def _read_every(value: object) -> float:
    seconds = tomlfile.parse_duration(value)
    if not _LEAST_PERIOD_S <= seconds <= _MOST_PERIOD_S:
        raise Unexpected("from 1s to 60s", value)
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSettings:
    """Maintenance notices of the cloud provider, which `vitald publish` reads from the metadata
    service of the instance (docs/cloud.md).
    """

    provider: str = setting(
        "off", one_of("off", *(known.value for known in Provider)), "Whose instance this is."
    )
    every_s: float = setting(
        tomlfile.parse_duration("5s"), _read_every, "How often the notices are read, 1s to 60s."
    )
    imminent_s: float = setting(
        tomlfile.parse_duration("15m"),
        tomlfile.parse_duration,
        "The node is unfit for new work from so long before an interruption.",
    )
    endpoint: str = setting(
        "http://169.254.169.254",
        partial(
            read_match,
            pattern=re.compile(r"http://[A-Za-z0-9.:\[\]-]+"),
            expected='an address such as "http://169.254.169.254"',
        ),
        "Address of the metadata service. Another than the default is only for tests.",
    )
