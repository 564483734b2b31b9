"""
The configuration file: one table of settings drives reading, checking and `config.example.toml`.

Owns     every key, its default, and what a wrong one is told. All mistakes of a file are told at
         once, with their lines.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitald import catalog, tomlfile
from vitald.checking import Unexpected, read_flag, read_match, read_number
from vitald.collectors.discovery import find_sections
from vitald.collectors.kernel_log.settings import KernelLogSettings
from vitald.paths import Paths
from vitald.settings import (
    MIN_PERIOD_S,
    SectionValues,
    Setting,
    one_of,
    read_count,
    read_nonempty_text,
    read_path,
    read_period,
    read_table,
    setting,
)

DEFAULT_PATH = Path("/etc/vitald/config.toml")
_LEAST_RUN_S = 60.0


class ConfigError(Exception):
    """The file is wrong: exit code 78 (EX_CONFIG). `errors` holds every mistake, each with file,
    line and key.
    """

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


# How a value is read: from what TOML gives to what the code uses. Each raises ValueError.

_figure = partial(read_number, least=0, most=1e6, expected="a number from 0 to 1000000")


def _level(value: object) -> int:
    if value not in (1, 2, 3, 4) or isinstance(value, bool):
        raise Unexpected("a run level from 1 to 4", value)
    return int(str(value))


def _programs(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    for item in values:
        if (
            not isinstance(item, str)
            or not item.startswith("/")
            or item.endswith("/")
            or "//" in item
        ):
            raise Unexpected("a list of absolute paths of programs", item)
    return tuple(values)


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
class Means:
    """By what something is done: a word that we know, or a program with its arguments, which no
    shell reads.
    """

    word: str = ""
    argv: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.word or " ".join(self.argv)


def _means(value: object) -> Means:
    if value in ("none", "slurm", "kubernetes"):
        return Means(word=str(value))
    if not isinstance(value, list):
        expected = '"none", "slurm", "kubernetes", or a list of a program and its arguments'
        raise Unexpected(expected, value)
    return _program(value)


def _program(value: object) -> Means:
    argv = value if isinstance(value, list) else []
    if (
        not argv
        or not argv[0]
        or not all(isinstance(part, str) and "\0" not in part for part in argv)
    ):
        expected = 'a list of a program and its arguments, such as ["systemctl", "reboot"]'
        raise Unexpected(expected, value)
    if "/" in argv[0] and not argv[0].startswith("/"):
        raise Unexpected("an absolute path or a bare name", argv[0])
    return Means(argv=tuple(argv))


_LABEL = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?=[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)


_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_label = partial(read_match, pattern=_LABEL, expected='a label such as "vitald/action=replace"')
_node_name = partial(read_match, pattern=_NODE_NAME, expected="the name of a node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Diagnostics: programs that test the hardware."""

    enabled: bool = setting(
        True,
        read_flag,
        "Run them on their schedule, and where a finding asks for one. false: on request only.",
    )
    idle_s: float = setting(
        tomlfile.parse_duration("5m"),
        tomlfile.parse_duration,
        "What needs idle devices waits until nobody has used them for so long.",
    )
    ignore_processes: tuple[str, ...] = setting(
        (),
        _programs,
        "More programs, by their absolute paths, that may have devices open and are no work. Their"
        " files must be root's.",
    )
    keep_s: float = setting(
        tomlfile.parse_duration("30d"),
        tomlfile.parse_duration,
        "What a program printed is kept for so long.",
        reload=True,
    )
    deep_log: Path | None = setting(
        None, read_path, "A file that gets lines as HyperPod's deep health checks write them."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dcgm:
    """DCGM's diagnostic (dcgmi diag), which loads what it tests from level 2 on."""

    enabled: bool = setting(True, read_flag, "Run it where dcgmi is installed and GPUs are here.")
    program: str = setting("dcgmi", read_nonempty_text, "Its name, or its path.")
    level_1_s: float = setting(
        tomlfile.parse_duration("1h"),
        read_period,
        'How often to run level 1: seconds, beside any work. Also soon after each boot. Or "off".',
    )
    level_2_s: float = setting(
        tomlfile.parse_duration("24h"),
        read_period,
        'How often to run level 2: minutes, when nobody uses the GPUs. Or "off".',
    )
    most: int = setting(
        2,
        _level,
        "Highest level that is run without a person. 3 takes up to half an hour and 4 up to two"
        " hours, at full power, on a node without work.",
    )
    deadline_1_s: float = setting(
        tomlfile.parse_duration("5m"),
        tomlfile.parse_duration,
        "A level 1 run that takes longer is ended.",
    )
    deadline_2_s: float = setting(
        tomlfile.parse_duration("30m"), tomlfile.parse_duration, "The same of level 2."
    )
    deadline_3_s: float = setting(
        tomlfile.parse_duration("60m"), tomlfile.parse_duration, "The same of level 3."
    )
    deadline_4_s: float = setting(
        tomlfile.parse_duration("180m"), tomlfile.parse_duration, "The same of level 4."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmHealth:
    """DCGM's background watches (dcgmi health), where the host engine runs."""

    enabled: bool = setting(
        True, read_flag, "Ask for them where dcgmi is installed and the host engine runs."
    )
    every_s: float = setting(tomlfile.parse_duration("10m"), read_period, 'How often, or "off".')
    deadline_s: float = setting(
        tomlfile.parse_duration("60s"),
        tomlfile.parse_duration,
        "An answer that takes longer is a sign of trouble itself.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EfaLoopback:
    """Each EFA adapter sends to itself, where fi_pingpong is installed."""

    every_s: float = setting(
        0.0, read_period, 'How often, when nobody uses the node. "off": on request only.'
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("2m"), tomlfile.parse_duration, "For each adapter."
    )
    least_gbps: float = setting(
        0.0, _figure, "Bandwidth below this is a finding, in Gbit/s. 0: it is only reported."
    )
    most_latency_us: float = setting(
        0.0, _figure, "Latency above this is a finding, in microseconds. 0: it is only reported."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccom:
    """An all-reduce over the Neuron cores of this node, where nccom-test is installed."""

    every_s: float = setting(
        0.0, read_period, 'How often, when nobody uses the node. "off": on request only.'
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("10m"), tomlfile.parse_duration, "A run that takes longer is ended."
    )
    least_gbytes: float = setting(
        0.0, _figure, "Bus bandwidth below this is a finding, in GB/s. 0: it is only reported."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccl:
    """An all-reduce over the GPUs of this node, where all_reduce_perf (nccl-tests) is installed."""

    every_s: float = setting(
        0.0, read_period, 'How often, when nobody uses the node. "off": on request only.'
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("10m"), tomlfile.parse_duration, "A run that takes longer is ended."
    )
    program: str = setting("all_reduce_perf", read_nonempty_text, "Its name, or its path.")
    least_gbytes: float = setting(
        0.0, _figure, "Bus bandwidth below this is a finding, in GB/s. 0: it is only reported."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """What the scripts of packaging/slurm do. They read this file themselves: a change needs no
    restart.
    """

    unknown: str = setting(
        "allow",
        one_of("allow", "refuse"),
        "Jobs on a node of which nothing is known, such as while vitald is stopped.",
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
        "The prolog takes no longer than this.",
    )
    level_2_after_failure: bool = setting(
        True,
        read_flag,
        "The epilog asks for a level 2 diagnostic after a job that failed or left findings.",
    )
    reason: str = setting(
        "vitald",
        read_nonempty_text,
        "How the reasons of nodes that we drain begin: only those are ever resumed by us.",
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
        '"none": say what is needed, and leave it to others. "automatic": have it done. Enable'
        " vitald-recover.path, too.",
        reload=True,
    )
    after_s: float = setting(
        tomlfile.parse_duration("2m"),
        tomlfile.parse_duration,
        "A finding must have been open for so long: a fault brings others with it, and the"
        " strongest decides; a person may step in.",
        reload=True,
    )
    drain: Means = setting(
        Means(word="none"),
        _means,
        'How new work is kept away before anything is done: "none", "slurm", "kubernetes", or a'
        " program (exit 0: nothing runs here any more, 75: something still does).",
        reload=True,
    )
    replace: Means = setting(
        Means(word="none"),
        _means,
        'Who is told that the node must be replaced: "none", "slurm" (the reason), "kubernetes"'
        " (the label), or a program.",
        reload=True,
    )
    reboot: Means = setting(
        Means(argv=("systemctl", "reboot")), _program, "How the node is rebooted.", reload=True
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
        "A program of those above that takes longer is ended, and has failed.",
        reload=True,
    )
    kill_switch: Path = setting(
        Path("/etc/vitald/no-recovery"),
        read_path,
        "While there is a file of this name, nothing is done.",
        reload=True,
    )
    maintenance: Path = setting(
        Path("/run/vitald-maintenance"),
        read_path,
        "The same; gone with the next boot.",
        reload=True,
    )
    state: Path = setting(
        Path("/var/lib/vitald-recover"),
        read_path,
        "Folder of what was done and decided. Only root may write it, and it must survive a"
        " reboot.",
        reload=True,
    )
    node: str = setting(
        "",
        _node_name,
        "What Slurm or Kubernetes calls this node. Default: the host name; without its domain for"
        " Slurm.",
        reload=True,
    )
    kubeconfig: Path = setting(
        Path("/etc/kubernetes/kubelet.conf"),
        read_path,
        "Who we are to Kubernetes. The kubelet itself may do all of this to its own node.",
        reload=True,
    )
    label: str = setting(
        "vitald/action=replace",
        _label,
        "The label of a node that must be replaced. On HyperPod:"
        ' "sagemaker.amazonaws.com/node-health-status=UnschedulablePendingReplacement".',
        reload=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """The Unix socket that people, schedulers and the command line ask."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """What codes mean."""

    profile: str = setting(
        "nvidia",
        one_of(*catalog.PROFILES),
        '"nvidia": NVIDIA\'s published advice. "hyperpod": what SageMaker HyperPod\'s agent was'
        " seen to do.",
        reload=True,
    )
    overrides: Mapping[str, object] = setting(
        dict,
        read_table,
        "Change or add entries of the catalogue, key by key; or as tables,"
        ' [catalog.overrides."xid/63"].',
        reload=True,
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
    most_bytes: int = setting(
        tomlfile.parse_size("512MiB"),
        tomlfile.parse_size,
        'Above this size the oldest events are dropped ("512MiB").',
        reload=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The daemon's own log, on standard error."""

    level: str = setting(
        "info",
        one_of("debug", "info", "warning", "error"),
        "debug, info, warning or error.",
        reload=True,
    )
    format: str = setting(
        "auto", one_of("auto", "json", "text"), '"auto": text on a terminal, JSON otherwise.'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole file."""

    paths: Paths = field(default_factory=Paths)
    collectors: SectionValues = field(default_factory=SectionValues)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    dcgm: Dcgm = field(default_factory=Dcgm)
    dcgm_health: DcgmHealth = field(default_factory=DcgmHealth)
    efa_loopback: EfaLoopback = field(default_factory=EfaLoopback)
    nccom: Nccom = field(default_factory=Nccom)
    nccl: Nccl = field(default_factory=Nccl)
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    recovery: Recovery = field(default_factory=Recovery)
    socket: Socket = field(default_factory=Socket)
    metrics: Metrics = field(default_factory=Metrics)
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    policy: Policy = field(default_factory=Policy)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    log: Log = field(default_factory=Log)
    notes: tuple[str, ...] = field(
        default=(), compare=False
    )  # keys that older files have, and what became of them: with file, line and key

    @property
    def socket_path(self) -> Path:
        return self.socket.path or self.paths.runtime / "vitald.sock"

    @property
    def kernel_log(self) -> KernelLogSettings:
        return self.collectors[KernelLogSettings]

    def get_section(self, name: str) -> Any:
        """The settings of a section, by its name in the file. Raises KeyError."""
        if name in COLLECTOR_SECTIONS:
            return self.collectors[SECTIONS[name]]
        return getattr(self, name)

    def replace_section(self, name: str, settings: object) -> Config:
        """The same configuration with other settings of one section."""
        sections = {section: self.get_section(section) for section in SECTIONS}
        return _build_config({**sections, name: settings}, self.notes)


COLLECTOR_SECTIONS = {section.name: section for section in find_sections()}
SECTIONS: dict[str, type] = {
    "paths": Paths,
    **{name: section.settings for name, section in COLLECTOR_SECTIONS.items()},
    "diagnostics": Diagnostics,
    "dcgm": Dcgm,
    "dcgm_health": DcgmHealth,
    "efa_loopback": EfaLoopback,
    "nccom": Nccom,
    "nccl": Nccl,
    "slurm": SlurmSettings,
    "recovery": Recovery,
    "socket": Socket,
    "metrics": Metrics,
    "catalog": CatalogSettings,
    "policy": Policy,
    "ledger": LedgerSettings,
    "log": Log,
}
# Collectors' sections with a period of their own, and those that can be switched off
POLLED = tuple(
    name
    for name, class_ in SECTIONS.items()
    if name in COLLECTOR_SECTIONS and hasattr(class_(), "every_s")
)
SWITCHED = tuple(name for name in COLLECTOR_SECTIONS if hasattr(SECTIONS[name](), "enabled"))
# The file's names where they differ from the code's, which carry their unit; seconds' `_s` is left
# out in any case.
_FILE_NAMES = {("ledger", "most_bytes"): "max_size"}


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of a key: its section and name now, or None and why it is gone."""

    since: str  # the version of vitald
    now: tuple[str, str] | None
    why: str = ""
    reads: Callable[[object], object] | None = (
        None  # the value under the new name; raises ValueError
    )


# Keys that older files have, and we no longer. They are taken, with a note: an upgrade that stopped
# at a key which was right the day before would leave a whole fleet without its daemon. A word that
# never was a key is refused as ever.
MOVED: dict[tuple[str, str], Moved] = {
    ("kernel_log", "accept_userspace"): Moved(
        "0.1",
        ("kernel_log", "userspace"),
        'true is "confirmed", false is "ignore"; without either it is "unconfirmed"',
        lambda value: "confirmed" if read_flag(value) else "ignore",
    ),
}


def settings_of(section: str) -> dict[str, tuple[str, Setting]]:
    """Key in the file -> (attribute, setting)."""
    names = {
        f.name: _FILE_NAMES.get((section, f.name), f.name.removesuffix("_s"))
        for f in fields(SECTIONS[section])
    }
    return {names[f.name]: (f.name, f.metadata["setting"]) for f in fields(SECTIONS[section])}


def example() -> str:
    """`config.example.toml`: every key, its default, a line on what it does."""
    lines = [
        (
            "# vitald: every key with its default. Check a file of yours with: vitald config check"
            " FILE"
        ),
        "",
    ]
    for section, class_ in SECTIONS.items():
        keys = settings_of(section)
        lines += [f"# {' '.join(str(class_.__doc__).split())}", f"[{section}]"]
        for key, (attribute, setting_) in keys.items():
            value = getattr(class_(), attribute)
            shown = (
                _EXAMPLES.get((section, key))
                or f"{key} = {_time(value) if attribute.endswith('_s') else _written(value)}"
            )
            after = " Takes effect on SIGHUP." if setting_.reload else ""
            lines += [f"# {setting_.help}{after}", shown, ""]
    return "\n".join(lines)


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, (bool, int)) else f'"{value}"'


def _time(seconds: float) -> str:
    """A duration as it is written in the file."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0 and (seconds > length or unit != "m"):
            return f'"{seconds / length:g}{unit}"'
    return f'"{seconds:g}s"' if seconds else '"off"'


# Root's defaults, values with units, and what has no default to show.
_EXAMPLES = {
    ("paths", "state"): 'state = "/var/lib/vitald"',
    ("paths", "runtime"): 'runtime = "/run/vitald"',
    (
        "diagnostics",
        "deep_log",
    ): '#deep_log = "/var/log/aws/clusters/sagemaker-deep-health-check.log"',
    **{
        (name, key): line
        for name, section in COLLECTOR_SECTIONS.items()
        for key, line in section.examples.items()
    },
    ("recovery", "reboot"): 'reboot = ["systemctl", "reboot"]',
    ("recovery", "node"): '#node = "ip-10-0-0-1.ec2.internal"',
    ("socket", "path"): 'path = "/run/vitald/vitald.sock"',
    ("socket", "group"): '#group = "slurm"',
    ("catalog", "overrides"): '#overrides."xid/63".action = "reboot_node"',
    ("ledger", "max_size"): 'max_size = "512MiB"',
}


def load(path: Path | None) -> Config:
    """The configuration in a file; the defaults where `path` is None. Raises ConfigError with every
    mistake.
    """
    if path is None:
        return Config()
    try:
        text, tables = tomlfile.read_toml(path)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    return parse(text, tables, str(path))


def parse(text: str, tables: tomlfile.Table, name: str) -> Config:
    """Check tables key by key. `text` only serves to find line numbers. Raises ConfigError."""
    errors: list[str] = []
    notes: list[str] = []
    written: dict[
        tuple[str, str], tuple[str, str]
    ] = {}  # keys that stand in the file under another name

    def told(section: str, key: str, what: str) -> str:
        line = tomlfile.find_line(text, section, key)
        place = f"{name}:{line}" if line is not None else name
        return f"{place}: [{section}]{' ' + key if key else ''}: {what}"

    def wrong(section: str, key: str, what: str) -> None:
        errors.append(told(*written.get((section, key), (section, key)), what))

    sections: dict[str, object] = {}
    for section, table in _brought_up(
        tables, written, lambda *what: notes.append(told(*what)), wrong
    ).items():
        if section not in SECTIONS:
            wrong(section, "", f"unknown section{tomlfile.suggest_word(section, SECTIONS)}")
            continue
        if not isinstance(table, dict):
            wrong(section, "", f"expected a table, found {table!r}")
            continue
        known = settings_of(section)
        values: dict[str, object] = {}
        for key, value in table.items():
            if key not in known:
                wrong(section, key, f"unknown key{tomlfile.suggest_word(key, known)}")
                continue
            attribute, setting_ = known[key]
            try:
                values[attribute] = setting_.read(value)
            except ValueError as error:
                wrong(section, key, str(error))
        sections[section] = SECTIONS[section](**values)
    config = _build_config(sections, tuple(notes))
    errors += [f"{name}: {error}" for error in _together(config, wrong)]
    if errors:
        raise ConfigError(errors)
    return config


def _build_config(sections: Mapping[str, Any], notes: tuple[str, ...] = ()) -> Config:
    """From the settings of each section, by its name."""
    of_collectors = [values for name, values in sections.items() if name in COLLECTOR_SECTIONS]
    others = {name: values for name, values in sections.items() if name not in COLLECTOR_SECTIONS}
    return Config(**others, collectors=SectionValues(*of_collectors), notes=notes)


def _brought_up(
    tables: tomlfile.Table,
    written: dict[tuple[str, str], tuple[str, str]],
    note: Callable[[str, str, str], None],
    wrong: Callable[[str, str, str], None],
) -> tomlfile.Table:
    """An older file's tables as today's: what was renamed under its new name, what is gone left
    out, and a note on each.
    """
    brought: tomlfile.Table = {
        section: dict(table) if isinstance(table, dict) else table
        for section, table in tables.items()
    }
    for (section, key), moved in MOVED.items():
        table = brought.get(section)
        if not isinstance(table, dict) or key not in table:
            continue
        value = table.pop(key)
        why = f": {moved.why}" if moved.why else ""
        if moved.now is None:
            note(section, key, f"gone since vitald {moved.since}{why}. It has no effect: remove it")
            continue
        home, new = moved.now
        place = brought.setdefault(home, {})
        try:
            value = moved.reads(value) if moved.reads is not None else value
        except ValueError as error:
            wrong(section, key, str(error))
            continue
        if moved.reads is not None and isinstance(place, dict) and place.get(new, value) != value:
            wrong(
                section,
                key,
                f"says {value!r}, and [{home}] {new} says {place[new]!r}: remove this one",
            )
            continue
        called = f"called [{home}] {new} since vitald {moved.since}{why}"
        if isinstance(place, dict) and new not in place:
            place[new] = value
            written[home, new] = section, key
            note(section, key, f"{called}. It is read as that: rename it")
        else:
            note(section, key, f"{called}, which is set as well. It has no effect: remove it")
    former = {section for section, _ in MOVED} - {*SECTIONS}
    return {section: table for section, table in brought.items() if table or section not in former}


def _together(config: Config, wrong: Callable[[str, str, str], None]) -> list[str]:
    """What only shows when settings are seen together."""
    for section in COLLECTOR_SECTIONS.values():
        section.check(config.collectors[section.settings], partial(wrong, section.name))
    for level in (1, 2):
        if 0.0 < getattr(config.dcgm, f"level_{level}_s") < _LEAST_RUN_S:
            wrong("dcgm", f"level_{level}", f"at least {_LEAST_RUN_S:g} s, or off")
    for name in POLLED:
        for key in ("every", "deadline"):
            if getattr(config.get_section(name), f"{key}_s") < MIN_PERIOD_S:
                wrong(name, key, f"at least {MIN_PERIOD_S:g} s")
    if len(os.fsencode(config.socket_path)) > 107:
        wrong(
            "socket",
            "path",
            f"{config.socket_path} is longer than the 107 bytes that a Unix socket's path may have",
        )
    if config.catalog == CatalogSettings():
        return []
    try:
        catalog.load_catalog(config.catalog.profile, config.catalog.overrides)
    except catalog.CatalogError as error:
        return error.errors
    return []


def reloaded(old: Config, new: Config) -> Config:
    """What is in force after a reload: `new` where a setting can change while running, `old`
    elsewhere.
    """
    sections: dict[str, Any] = {}
    for section in SECTIONS:
        values = {
            attribute: getattr(new.get_section(section), attribute)
            for attribute, setting_ in settings_of(section).values()
            if setting_.reload
        }
        sections[section] = replace(old.get_section(section), **values)
    return _build_config(sections)


def changed(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """Keys that differ: those that a reload applies, and those that need a restart."""
    applied: list[str] = []
    restart: list[str] = []
    for section in SECTIONS:
        for key, (attribute, setting_) in settings_of(section).items():
            before = getattr(old.get_section(section), attribute)
            if before != getattr(new.get_section(section), attribute):
                (applied if setting_.reload else restart).append(f"[{section}] {key}")
    return applied, restart
