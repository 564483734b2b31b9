"""
The configuration file: one table of settings drives reading, checking and `config.example.toml`.

Owns     every key, its default, and the message on a wrong one. All mistakes of a file are reported
         at once, with their lines.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitald import catalog, tomlfile
from vitald.catalog_section import CatalogSettings
from vitald.cloud_section import CloudSettings
from vitald.collectors.discovery import find_sections
from vitald.collectors.kernel_log.settings import KernelLogSettings
from vitald.config_file import (
    Array,
    ConfigError,
    FileReport,
    list_settings,
    read_array,
    read_section,
)
from vitald.config_sections import (
    JobSettings,
    LedgerSettings,
    Log,
    Metrics,
    Policy,
    Recovery,
    SlurmSettings,
    Socket,
    find_socket,
)
from vitald.diagnostics_sections import (
    Bandwidth,
    Dcgm,
    DcgmHealth,
    Diagnostics,
    EfaLoopback,
    Gemm,
    IbWrite,
    Nccl,
    NcclNetwork,
    Nccom,
    ValidationSettings,
)
from vitald.former_keys import upgrade_tables
from vitald.nvhcd_section import NvhcdSettings
from vitald.paths import Paths
from vitald.publish_sections import (
    KubernetesSettings,
    NotifySettings,
    PublishSettings,
    check_kubernetes,
    check_notify,
)
from vitald.settings import (
    MIN_PERIOD_S,
    SectionValues,
    Setting,
)

_LEAST_RUN_S = 60.0
_HASH_BYTES = 6  # a float64, as a metric's value is, holds 48 bits exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole file."""

    paths: Paths = field(default_factory=Paths)
    collectors: SectionValues = field(default_factory=SectionValues)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    dcgm: Dcgm = field(default_factory=Dcgm)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    dcgm_health: DcgmHealth = field(default_factory=DcgmHealth)
    efa_loopback: EfaLoopback = field(default_factory=EfaLoopback)
    nccom: Nccom = field(default_factory=Nccom)
    nccl: Nccl = field(default_factory=Nccl)
    nccl_network: NcclNetwork = field(default_factory=NcclNetwork)
    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    ib_write: IbWrite = field(default_factory=IbWrite)
    gemm: Gemm = field(default_factory=Gemm)
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    recovery: Recovery = field(default_factory=Recovery)
    publish: PublishSettings = field(default_factory=PublishSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    cloud: CloudSettings = field(default_factory=CloudSettings)
    nvhcd: NvhcdSettings = field(default_factory=NvhcdSettings)
    socket: Socket = field(default_factory=Socket)
    job: JobSettings = field(default_factory=JobSettings)
    metrics: Metrics = field(default_factory=Metrics)
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    policy: Policy = field(default_factory=Policy)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    log: Log = field(default_factory=Log)
    notify: tuple[NotifySettings, ...] = ()  # each [[notify]] of the file
    notes: tuple[str, ...] = field(
        default=(), compare=False
    )  # keys that older files have, and what became of them: with file, line and key
    settings_hash: int = field(default=0, compare=False)  # of what the file sets

    @property
    def socket_path(self) -> Path:
        return find_socket(self.socket, self.paths)

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
        return _build_config({**sections, name: settings}, self.notify, self.notes)


COLLECTOR_SECTIONS = {section.name: section for section in find_sections()}
SECTIONS: dict[str, type] = {
    "paths": Paths,
    **{name: section.settings for name, section in COLLECTOR_SECTIONS.items()},
    "diagnostics": Diagnostics,
    "dcgm": Dcgm,
    "validation": ValidationSettings,
    "dcgm_health": DcgmHealth,
    "efa_loopback": EfaLoopback,
    "nccom": Nccom,
    "nccl": Nccl,
    "nccl_network": NcclNetwork,
    "bandwidth": Bandwidth,
    "ib_write": IbWrite,
    "gemm": Gemm,
    "slurm": SlurmSettings,
    "recovery": Recovery,
    "publish": PublishSettings,
    "kubernetes": KubernetesSettings,
    "cloud": CloudSettings,
    "nvhcd": NvhcdSettings,
    "socket": Socket,
    "job": JobSettings,
    "metrics": Metrics,
    "catalog": CatalogSettings,
    "policy": Policy,
    "ledger": LedgerSettings,
    "log": Log,
}
# Arrays of tables: any number of entries, each with all keys
ARRAYS = {"notify": Array(NotifySettings, check_notify)}
# Collectors' sections with a period of their own, and those that can be switched off
POLLED = tuple(
    name
    for name, class_ in SECTIONS.items()
    if name in COLLECTOR_SECTIONS and hasattr(class_(), "every_s")
)
SWITCHED = tuple(name for name in COLLECTOR_SECTIONS if hasattr(SECTIONS[name](), "enabled"))


def settings_of(section: str) -> dict[str, tuple[str, Setting]]:
    """Key in the file -> (attribute, setting). Of a section, or of an entry of an array."""
    return list_settings(section, _find_class(section))


def _find_class(section: str) -> type:
    return SECTIONS[section] if section in SECTIONS else ARRAYS[section].settings


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
            after = " Takes effect on SIGHUP." if setting_.reload else ""
            shown = format_default(section, key, getattr(class_(), attribute), attribute)
            lines += [f"# {setting_.help}{after}", shown, ""]
    for section, array in ARRAYS.items():
        lines += [f"# {' '.join(str(array.settings.__doc__).split())}", f"#[[{section}]]"]
        for key, (attribute, setting_) in settings_of(section).items():
            value = getattr(array.settings(), attribute)
            shown = format_default(section, key, value, attribute)
            lines += [f"# {setting_.help}", f"{'' if shown[0] == '#' else '#'}{shown}", ""]
    return "\n".join(lines)


def format_default(section: str, key: str, value: object, attribute: str) -> str:
    """A line of the example; it begins with # where the key is not set by default."""
    if example_line := _EXAMPLES.get((section, key)):
        return example_line
    is_time = attribute.endswith("_s") and isinstance(value, float)
    return f"{key} = {_time(float(str(value))) if is_time else _written(value)}"


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
    ("diagnostics", "machine"): '#machine = "Standard_ND96isr_H100_v5"',
    ("diagnostics", "learn_since"): '#learn_since = "2026-11-23"',
    ("gemm", "library"): '#library = "/usr/local/cuda/lib64/libcublas.so.13"',
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
    ("publish", "state"): 'state = "/var/lib/vitald-publish"',
    ("publish", "nfd"): '#nfd = "/etc/kubernetes/node-feature-discovery/features.d"',
    ("publish", "textfile"): '#textfile = "/var/lib/node_exporter/textfile/vitald.prom"',
    ("kubernetes", "node"): '#node = "ip-10-0-0-1.ec2.internal"',
    ("kubernetes", "server"): '#server = "https://10.0.0.1:6443"',
    ("kubernetes", "ca"): '#ca = "/etc/kubernetes/pki/ca.crt"',
    ("kubernetes", "token_file"): '#token_file = "/run/credentials/vitald-publish.service/token"',
    (
        "kubernetes",
        "client_certificate",
    ): '#client_certificate = "/var/lib/kubelet/pki/kubelet-client-current.pem"',
    ("kubernetes", "client_key"): '#client_key = "/var/lib/kubelet/pki/kubelet-client-current.pem"',
    ("notify", "name"): '#name = "oncall"',
    ("notify", "url"): '#url = "https://alerts.example.com/hook"',
    ("notify", "url_file"): '# url_file = "/run/credentials/vitald-publish.service/url"',
    ("notify", "headers_file"): '#headers_file = "/run/credentials/vitald-publish.service/headers"',
    ("notify", "secret_file"): '#secret_file = "/run/credentials/vitald-publish.service/secret"',
    (
        "notify",
        "routing_key_file",
    ): '# routing_key_file = "/run/credentials/vitald-publish.service/routing-key"',
    ("notify", "ca"): '#ca = "/etc/pki/receiver-ca.crt"',
    ("notify", "command"): '# command = ["/usr/local/bin/notify"]',
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
    report = FileReport(name, text)
    sections: dict[str, object] = {}
    notify: tuple[NotifySettings, ...] = ()
    upgraded = upgrade_tables(tables, SECTIONS, report)
    for section, table in upgraded.items():
        if section in ARRAYS:
            notify = read_array(section, ARRAYS[section], table, report)
        elif section not in SECTIONS:
            suggestion = tomlfile.suggest_word(section, [*SECTIONS, *ARRAYS])
            report.add_error(section, "", f"unknown section{suggestion}")
        else:
            sections[section] = read_section(section, SECTIONS[section], table, report)
    config = _build_config(sections, notify, tuple(report.notes))
    report.errors += [f"{name}: {error}" for error in _check_together(config, report.add_error)]
    if report.errors:
        raise ConfigError(report.errors)
    return replace(config, settings_hash=hash_settings(upgraded))


def hash_settings(tables: tomlfile.Table) -> int:
    """A number that is the same for files with the same settings, whatever their comments and
    order: the first 48 bits of a SHA-256; 0 where nothing is set.
    """
    if not tables:
        return 0
    text = json.dumps(tables, sort_keys=True, separators=(",", ":"), default=str)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:_HASH_BYTES], "big")


def _build_config(
    sections: Mapping[str, Any], notify: tuple[NotifySettings, ...], notes: tuple[str, ...] = ()
) -> Config:
    """From the settings of each section, by its name."""
    of_collectors = [values for name, values in sections.items() if name in COLLECTOR_SECTIONS]
    others = {name: values for name, values in sections.items() if name not in COLLECTOR_SECTIONS}
    return Config(**others, collectors=SectionValues(*of_collectors), notify=notify, notes=notes)


def _check_together(config: Config, wrong: Callable[[str, str, str], None]) -> list[str]:
    """Check settings that depend on each other; returns the mistakes that have no place."""
    for section in COLLECTOR_SECTIONS.values():
        section.check(config.collectors[section.settings], partial(wrong, section.name))
    for level in (1, 2, 3):
        if 0.0 < getattr(config.dcgm, f"level_{level}_s") < _LEAST_RUN_S:
            wrong("dcgm", f"level_{level}", f"at least {_LEAST_RUN_S:g} s, or off")
    for name in POLLED:
        for key in ("every", "deadline"):
            if getattr(config.get_section(name), f"{key}_s") < MIN_PERIOD_S:
                wrong(name, key, f"at least {MIN_PERIOD_S:g} s")
    check_kubernetes(config.kubernetes, config.recovery.mode, partial(wrong, "kubernetes"))
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
    return _build_config(sections, old.notify)


def changed(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """Keys that differ: those that a reload applies, and those that need a restart."""
    applied: list[str] = []
    restart: list[str] = []
    for section in SECTIONS:
        for key, (attribute, setting_) in settings_of(section).items():
            before = getattr(old.get_section(section), attribute)
            if before != getattr(new.get_section(section), attribute):
                (applied if setting_.reload else restart).append(f"[{section}] {key}")
    if old.notify != new.notify:
        restart.append("[[notify]]")
    return applied, restart
