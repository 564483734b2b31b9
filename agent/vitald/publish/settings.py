"""`[publish]` of the configuration, which `vitald publish` reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitald.checking import Unexpected, read_flag, read_match
from vitald.config.paths import find_service_folder
from vitald.config.readers import read_path
from vitald.config.section import Section, TakesEffect, setting

_read_user = partial(
    read_match,
    pattern=re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*"),
    expected="the name of a user",
)


def _read_textfile(value: object) -> Path:
    path = read_path(value)
    if path.suffix != ".prom":  # node_exporter reads no others
        raise Unexpected("the path of a file *.prom", value)
    return path


def _find_state_folder() -> Path:
    """What systemd gives (`StateDirectory=`), else `/var/lib/vitald-publish`."""
    return find_service_folder("STATE_DIRECTORY") or Path("/var/lib/vitald-publish")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSettings:
    """`vitald publish`, a process of its own, which writes the node's state to other systems."""

    state: Path = setting(
        _find_state_folder,
        read_path,
        "Folder of publish.db: what has been written, and since when.",
    )
    user: str = setting(
        "vitald-publish",
        _read_user,
        "User that it runs as. The daemon accepts its reports, and its requests to release the GPUs"
        " for a driver upgrade.",
        reload=False,  # the daemon reads it, too
    )
    drills: bool = setting(
        False,
        read_flag,
        "Publish simulated findings like real ones. Only for tests: others act on them.",
    )
    nfd: Path | None = setting(
        None,
        read_path,
        "Folder of Node Feature Discovery's feature files, where the labels are written with an"
        ' expiry time: "/etc/kubernetes/node-feature-discovery/features.d".',
    )
    textfile: Path | None = setting(
        None,
        _read_textfile,
        "File of metrics for the textfile collector of Prometheus' node_exporter, by its path"
        " (*.prom).",
    )


PUBLISH = Section(
    name="publish",
    settings=PublishSettings,
    effect=TakesEffect.PUBLISHER,
    examples={
        "state": 'state = "/var/lib/vitald-publish"',
        "nfd": '#nfd = "/etc/kubernetes/node-feature-discovery/features.d"',
        "textfile": '#textfile = "/var/lib/node_exporter/textfile/vitald.prom"',
    },
)
