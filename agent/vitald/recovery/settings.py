"""`[recovery]` of the configuration: whether and how this node is rebooted or replaced."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitald.checking import Unexpected, read_match
from vitald.config.readers import (
    one_of,
    read_command,
    read_count,
    read_path,
    read_period,
)
from vitald.config.section import Section, TakesEffect, duration, setting


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
        return _read_command(value)

    return read


def _read_command(value: object) -> Method:
    expected = 'a list of a program and its arguments, such as ["systemctl", "reboot"]'
    return Method(argv=read_command(value, expected, is_searched=True))


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


def _read_limit(value: object) -> Limit:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65536:
        return Limit(count=value)
    share = re.fullmatch(r"([1-9][0-9]?|100)%", value, re.ASCII) if isinstance(value, str) else None
    if share is None:
        raise Unexpected('a number from 1 to 65536, or a share from "1%" to "100%"', value)
    return Limit(percent=int(share[1]))


_read_scheduler = _method_of("none", "slurm", "kubernetes")
_LABEL = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?"
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
    r"=[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_read_label = partial(
    read_match, pattern=_LABEL, expected='a label such as "vitald.io/recovery=replace"'
)
_read_namespace = partial(
    read_match,
    pattern=re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"),
    expected="the name of a namespace",
)
_read_node_name = partial(read_match, pattern=_NODE_NAME, expected="the name of a node")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    """Whether this node is rebooted, or marked for replacement, without a person. The daemon only
    asks; vitald-recover.service, as root, decides and acts.
    """

    mode: str = setting(
        "none",
        one_of("none", "automatic"),
        '"none": only report what is required. "automatic": have it done; enable'
        " vitald-recover.path, too.",
    )
    after_s: float = duration(
        "2m",
        "A finding must have been open for so long: a fault causes others, and the strongest"
        " decides; an operator may intervene.",
    )
    min_uptime_s: float = duration(
        "10m",
        "Nothing is done before the node has run for so long: an administrator who has just booted"
        ' it may be at work on it, and needs time to stop recovery. "off": at once.',
        read_period,
    )
    drain: Method = setting(
        Method(word="none"),
        _read_scheduler,
        'How new work is kept away before anything is done: "none", "slurm", "kubernetes", or a'
        " program (exit 0: nothing runs here any more, 75: something still does).",
    )
    replace: Method = setting(
        Method(word="none"),
        _read_scheduler,
        'Where the need for replacement is reported: "none", "slurm" (the reason), "kubernetes"'
        " (the label), or a program.",
    )
    reboot: Method = setting(
        Method(argv=("systemctl", "reboot")), _read_command, "How the node is rebooted."
    )
    brake: Method = setting(
        Method(word="scheduler"),
        _method_of("scheduler", "lease", "none"),
        'What limits how many nodes are out of service at once: "scheduler" (counts, where `drain`'
        ' is "slurm" or "kubernetes"), "lease" (Leases in Kubernetes), "none", or a program (exit'
        " 0: go ahead).",
    )
    brake_limit: Limit = setting(
        Limit(percent=10),
        _read_limit,
        "At most so many nodes, this one included: a number, or a share of the cluster and of each"
        " Slurm partition of the node. A share is one node at least.",
    )
    brake_delay_s: float = duration(
        "10m",
        "A random delay up to this before the node is taken out of service: all nodes may want it"
        ' at the same moment. "off": none.',
        read_period,
    )
    lease_namespace: str = setting(
        "vitald", _read_namespace, 'Namespace of the Leases of brake = "lease".'
    )
    lease_kubeconfig: Path | None = setting(
        None,
        read_path,
        'Credentials for brake = "lease", which those of a kubelet do not suffice for. Default:'
        " `kubeconfig`.",
    )
    lease_duration_s: float = duration(
        "1h", "A Lease counts for so long after the node last asked for recovery."
    )
    reboots_per_day: int = setting(
        1,
        read_count,
        "No more reboots than this in a day, whatever the cause. For one cause there is never more"
        " than one.",
    )
    replacements_per_day: int = setting(
        1, read_count, "How often a day the node may be marked for replacement."
    )
    deadline_s: float = duration(
        "60s", "One of these programs that takes longer is ended, and has failed."
    )
    kill_switch: Path = setting(
        Path("/etc/vitald/no-recovery"), read_path, "While this file exists, nothing is done."
    )
    maintenance: Path = setting(
        Path("/run/vitald-maintenance"), read_path, "The same, in a folder that is cleared at boot."
    )
    state: Path = setting(
        Path("/var/lib/vitald-recover"),
        read_path,
        "Folder of the logs of actions and decisions. Only root may write it, and it must survive"
        " a reboot.",
    )
    node: str = setting(
        "",
        _read_node_name,
        "Name of this node in Slurm or Kubernetes. Default: the host name; without its domain for"
        " Slurm.",
    )
    kubeconfig: Path = setting(
        Path("/etc/kubernetes/kubelet.conf"),
        read_path,
        "Credentials for Kubernetes. Those of the kubelet suffice for its own node.",
    )
    label: str = setting(
        "vitald.io/recovery=replace",
        _read_label,
        "The label of a node that must be replaced. On HyperPod:"
        ' "sagemaker.amazonaws.com/node-health-status=UnschedulablePendingReplacement".',
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


RECOVERY = Section(
    name="recovery",
    settings=RecoverySettings,
    effect=TakesEffect.RELOAD,
    examples={
        "reboot": 'reboot = ["systemctl", "reboot"]',
        "lease_kubeconfig": '#lease_kubeconfig = "/etc/vitald/lease.kubeconfig"',
        "node": '#node = "ip-10-0-0-1.ec2.internal"',
    },
)
