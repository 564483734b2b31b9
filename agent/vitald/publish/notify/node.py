"""Which node a notification is from."""

from __future__ import annotations

import os
import re
import socket

from vitald import __version__
from vitald.paths import Paths
from vitald.publish.notify.notification import NodeIdentity
from vitald.publish.summary import read_short

_INSTANCE_ID = re.compile(r"i-[0-9a-f]{8,17}")


def identify_node(paths: Paths) -> NodeIdentity:
    """What is not known is "". On Nitro instances, DMI's asset tag of the board is the id of the
    instance (EC2 User Guide, "Detect whether a host is an EC2 instance").
    """
    tag = _read_line(paths, "sysfs", "class/dmi/id/board_asset_tag")
    return NodeIdentity(
        # The host name of a pod is the pod's own.
        host=read_short(os.environ.get("NODE_NAME", "") or socket.gethostname()),
        instance_id=tag if _INSTANCE_ID.fullmatch(tag) else "",
        boot_id=_read_line(paths, "procfs", "sys/kernel/random/boot_id"),
        version=__version__,
    )


def _read_line(paths: Paths, root: str, name: str) -> str:
    """ "" for a file that is not there."""
    try:
        return read_short((getattr(paths, root) / name).read_text(errors="replace").strip())
    except OSError:
        return ""
