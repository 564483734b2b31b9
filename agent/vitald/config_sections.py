"""Sections of the configuration on the daemon's own surroundings: keys, defaults and help."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitald import tomlfile
from vitald.checking import Unexpected, read_flag, read_match
from vitald.paths import Paths
from vitald.settings import (
    one_of,
    read_count,
    read_nonempty_text,
    read_path,
    read_period,
    read_program,
    setting,
)
from vitald.slurm.settings import UNKNOWN_CHOICES


# How a value is read: from what TOML gives to what the code uses. Each raises ValueError.
@dataclass(frozen=True, slots=True)
class Listen:
    """An address to listen on; `off` is no address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _listen(value: object) -> Listen | None:
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


@dataclass(frozen=True, slots=True)
class Method:
    """By what something is done: a word that we know, or a program with its arguments, which no
    shell reads.
    """

    word: str = ""
    argv: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.word or " ".join(self.argv)


def _method_of(*words: str) -> Callable[[object], Method]:
    """A reader of one of these words or a program."""

    def read(value: object) -> Method:
        if value in words:
            return Method(word=str(value))
        if not isinstance(value, list):
            known = ", ".join(f'"{word}"' for word in words)
            raise Unexpected(f"{known}, or a list of a program and its arguments", value)
        return _program(value)

    return read


def _program(value: object) -> Method:
    argv = value if isinstance(value, list) else []
    if (
        not argv
        or not argv[0]
        or not all(isinstance(part, str) and "\0" not in part for part in argv)
    ):
        expected = 'a list of a program and its arguments, such as ["systemctl", "reboot"]'
        raise Unexpected(expected, value)
    read_program(argv[0])
    return Method(argv=tuple(argv))


@dataclass(frozen=True, slots=True)
class Limit:
    """At most so many of some nodes: a number, or a share of them in percent."""

    count: int = 0
    percent: int = 0

    def __str__(self) -> str:
        return f"{self.percent}%" if self.percent else str(self.count)

    def apply_to(self, total: int) -> int:
        """How many of `total` nodes. A share is one at least: a small cluster recovers, too."""
        return max(1, total * self.percent // 100) if self.percent else self.count


def _limit(value: object) -> Limit:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65536:
        return Limit(count=value)
    share = re.fullmatch(r"([1-9][0-9]?|100)%", value, re.ASCII) if isinstance(value, str) else None
    if share is None:
        raise Unexpected('a number from 1 to 65536, or a share from "1%" to "100%"', value)
    return Limit(percent=int(share[1]))


_means = _method_of("none", "slurm", "kubernetes")
_LABEL = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?"
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
    r"=[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_label = partial(
    read_match, pattern=_LABEL, expected='a label such as "vitald.io/recovery=replace"'
)
_namespace = partial(
    read_match,
    pattern=re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"),
    expected="the name of a namespace",
)
_node_name = partial(read_match, pattern=_NODE_NAME, expected="the name of a node")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """What the scripts of packaging/slurm do. They read this file themselves: a change needs no
    restart.
    """

    unknown: str = setting(
        "allow",
        one_of(*UNKNOWN_CHOICES),
        "Jobs on a node whose state is unknown, for example while vitald is stopped.",
    )
    level_1_age_s: float = setting(
        0.0,
        read_period,
        "The prolog runs a level 1 diagnostic first if the last one is older than this, and time"
        ' allows. "off": never.',
    )
    budget_s: float = setting(
        tomlfile.parse_duration("2s"),
        tomlfile.parse_duration,
        "The prolog takes no longer than this. Nor does the epilog, and at most 2 s.",
    )
    level_2_after_failure: bool = setting(
        True,
        read_flag,
        "The epilog requests a level 2 diagnostic after a job that failed or left findings.",
    )
    reason: str = setting(
        "vitald",
        read_nonempty_text,
        "Prefix of the reason of nodes that vitald drains: it resumes only nodes with it.",
    )
    record: Path = setting(
        Path("/var/lib/vitald-recover/slurm-reason"),
        read_path,
        "Where the last of these reasons are recorded. Without it a drained node counts as edited.",
    )
    hyperpod: bool = setting(
        False,
        read_flag,
        "Give nodes the state and reason that SageMaker HyperPod acts on: fail, Action:Reboot or"
        " Action:Replace.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Whether this node is rebooted, or marked for replacement, without a person. The daemon only
    asks; vitald-recover.service, as root, decides and acts.
    """

    mode: str = setting(
        "none",
        one_of("none", "automatic"),
        '"none": only report what is required. "automatic": have it done; enable'
        " vitald-recover.path, too.",
        reload=True,
    )
    after_s: float = setting(
        tomlfile.parse_duration("2m"),
        tomlfile.parse_duration,
        "A finding must have been open for so long: a fault causes others, and the strongest"
        " decides; an operator may intervene.",
        reload=True,
    )
    min_uptime_s: float = setting(
        tomlfile.parse_duration("10m"),
        read_period,
        "Nothing is done before the node has run for so long: an administrator who has just booted"
        ' it may be at work on it, and needs time to stop recovery. "off": at once.',
        reload=True,
    )
    drain: Method = setting(
        Method(word="none"),
        _means,
        'How new work is kept away before anything is done: "none", "slurm", "kubernetes", or a'
        " program (exit 0: nothing runs here any more, 75: something still does).",
        reload=True,
    )
    replace: Method = setting(
        Method(word="none"),
        _means,
        'Where the need for replacement is reported: "none", "slurm" (the reason), "kubernetes"'
        " (the label), or a program.",
        reload=True,
    )
    reboot: Method = setting(
        Method(argv=("systemctl", "reboot")), _program, "How the node is rebooted.", reload=True
    )
    brake: Method = setting(
        Method(word="scheduler"),
        _method_of("scheduler", "lease", "none"),
        'What limits how many nodes are out of service at once: "scheduler" (counts, where `drain`'
        ' is "slurm" or "kubernetes"), "lease" (Leases in Kubernetes), "none", or a program (exit'
        " 0: go ahead).",
        reload=True,
    )
    brake_limit: Limit = setting(
        Limit(percent=10),
        _limit,
        "At most so many nodes, this one included: a number, or a share of the cluster and of each"
        " Slurm partition of the node. A share is one node at least.",
        reload=True,
    )
    brake_delay_s: float = setting(
        tomlfile.parse_duration("10m"),
        read_period,
        "A random delay up to this before the node is taken out of service: all nodes may want it"
        ' at the same moment. "off": none.',
        reload=True,
    )
    lease_namespace: str = setting(
        "vitald", _namespace, 'Namespace of the Leases of brake = "lease".', reload=True
    )
    lease_kubeconfig: Path | None = setting(
        None,
        read_path,
        'Credentials for brake = "lease", which those of a kubelet do not suffice for. Default:'
        " `kubeconfig`.",
        reload=True,
    )
    lease_duration_s: float = setting(
        tomlfile.parse_duration("1h"),
        tomlfile.parse_duration,
        "A Lease counts for so long after the node last asked for recovery.",
        reload=True,
    )
    reboots_per_day: int = setting(
        1,
        read_count,
        "No more reboots than this in a day, whatever the cause. For one cause there is never more"
        " than one.",
        reload=True,
    )
    replacements_per_day: int = setting(
        1, read_count, "How often a day the node may be marked for replacement.", reload=True
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("60s"),
        tomlfile.parse_duration,
        "One of these programs that takes longer is ended, and has failed.",
        reload=True,
    )
    kill_switch: Path = setting(
        Path("/etc/vitald/no-recovery"),
        read_path,
        "While this file exists, nothing is done.",
        reload=True,
    )
    maintenance: Path = setting(
        Path("/run/vitald-maintenance"),
        read_path,
        "The same, in a folder that is cleared at boot.",
        reload=True,
    )
    state: Path = setting(
        Path("/var/lib/vitald-recover"),
        read_path,
        "Folder of the logs of actions and decisions. Only root may write it, and it must survive"
        " a reboot.",
        reload=True,
    )
    node: str = setting(
        "",
        _node_name,
        "Name of this node in Slurm or Kubernetes. Default: the host name; without its domain for"
        " Slurm.",
        reload=True,
    )
    kubeconfig: Path = setting(
        Path("/etc/kubernetes/kubelet.conf"),
        read_path,
        "Credentials for Kubernetes. Those of the kubelet suffice for its own node.",
        reload=True,
    )
    label: str = setting(
        "vitald.io/recovery=replace",
        _label,
        "The label of a node that must be replaced. On HyperPod:"
        ' "sagemaker.amazonaws.com/node-health-status=UnschedulablePendingReplacement".',
        reload=True,
    )

    @property
    def brake_in_force(self) -> Method:
        """`scheduler` stands for that of `drain`; "none" if that names none."""
        if self.brake.word != "scheduler":
            return self.brake
        return self.drain if self.drain.word in ("slurm", "kubernetes") else Method(word="none")

    def describe_brake(self) -> str:
        brake = self.brake_in_force
        if brake.argv:
            return f"asks {brake.argv[0]}"
        if brake.word == "lease":
            where = f"namespace {self.lease_namespace}"
            return f"at most {self.brake_limit} of the nodes, by Leases in {where}"
        if brake.word != "none":
            return f"at most {self.brake_limit} of the nodes, counted in {brake.word.capitalize()}"
        why = "" if self.brake.word == "none" else ": [recovery] drain names no scheduler to ask"
        return f"none: nothing limits how many nodes are taken at once{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """The Unix socket of the API."""

    path: Path | None = setting(None, read_path, "Default: vitald.sock in the runtime folder.")
    group: str | None = setting(
        None,
        read_nonempty_text,
        "Group that may read over the socket. Default: the daemon's own group.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The Prometheus endpoint."""

    listen: Listen | None = setting(
        Listen("127.0.0.1", 9820), _listen, 'Address and port, or "off".'
    )
    nvlink: str = setting(
        "sum",
        one_of("sum", "each"),
        '"sum": one value for all NVLinks of a GPU. "each": one a link, with the label link.',
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What this site does by itself."""

    device_reset: bool = setting(
        False,
        read_flag,
        "The site resets devices itself, so a reset alone does not raise rebootRequired.",
        reload=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """What is remembered, and for how long. Open findings are kept in any case."""

    keep_s: float = setting(
        tomlfile.parse_duration("90d"),
        tomlfile.parse_duration,
        'Events older than this are dropped ("90d").',
        reload=True,
    )
    max_size: int = setting(
        tomlfile.parse_size("512MiB"),
        tomlfile.parse_size,
        'Above this size the oldest events are dropped ("512MiB").',
        reload=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The log of vitald's services, on standard error."""

    level: str = setting(
        "info",
        one_of("debug", "info", "warning", "error"),
        "debug, info, warning or error.",
        reload=True,
    )
    format: str = setting("text", one_of("text", "json"), "A readable line each, or a JSON object.")


def find_socket(socket: Socket, paths: Paths) -> Path:
    """Where the API's socket is."""
    return socket.path or paths.runtime / "vitald.sock"
