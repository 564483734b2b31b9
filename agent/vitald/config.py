"""
The configuration file: one table of settings drives reading, checking and `config.example.toml`.

Owns     every key, its default, and the message on a wrong one. All mistakes of a file are reported
         at once, with their lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitald import catalog, tomlfile
from vitald.catalog_section import CatalogSettings
from vitald.collectors.discovery import find_sections
from vitald.collectors.kernel_log.settings import KernelLogSettings
from vitald.config_file import (
    ConfigError,
    FileReport,
    SectionGroup,
    list_settings,
    read_group,
    read_section,
)
from vitald.config_sections import (
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
    Dcgm,
    DcgmHealth,
    Diagnostics,
    EfaLoopback,
    Nccl,
    Nccom,
    SiteCheckSettings,
)
from vitald.notify_section import NOTIFY, NotifySettings, check_notify
from vitald.paths import Paths
from vitald.publish_sections import KubernetesSettings, PublishSettings, check_kubernetes
from vitald.settings import (
    MIN_PERIOD_S,
    SectionValues,
    Setting,
)

_LEAST_RUN_S = 60.0
_HASH_BYTES = 6  # what a metric's 64-bit float holds exactly


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
    checks: Mapping[str, SiteCheckSettings] = field(default_factory=dict)  # by name
    notify: Mapping[str, NotifySettings] = field(default_factory=dict)  # by name
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    recovery: Recovery = field(default_factory=Recovery)
    publish: PublishSettings = field(default_factory=PublishSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    socket: Socket = field(default_factory=Socket)
    metrics: Metrics = field(default_factory=Metrics)
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    policy: Policy = field(default_factory=Policy)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    log: Log = field(default_factory=Log)
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
        sections = {section: self.get_section(section) for section in (*SECTIONS, *GROUPS)}
        return _build_config({**sections, name: settings})


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
    "publish": PublishSettings,
    "kubernetes": KubernetesSettings,
    "socket": Socket,
    "metrics": Metrics,
    "catalog": CatalogSettings,
    "policy": Policy,
    "ledger": LedgerSettings,
    "log": Log,
}
SITE_CHECKS = SectionGroup(
    name="checks",
    settings=SiteCheckSettings,
    pattern=re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII),
    expected="a name of lower-case letters, digits and _, and no section's name",
    example="scratch",
    reserved=frozenset(SECTIONS),
)
GROUPS = {group.name: group for group in (SITE_CHECKS, NOTIFY)}
# Collectors' sections with a period of their own, and those that can be switched off
POLLED = tuple(
    name
    for name, class_ in SECTIONS.items()
    if name in COLLECTOR_SECTIONS and hasattr(class_(), "every_s")
)
SWITCHED = tuple(name for name in COLLECTOR_SECTIONS if hasattr(SECTIONS[name](), "enabled"))


def settings_of(section: str) -> dict[str, tuple[str, Setting]]:
    """Key in the file -> (attribute, setting)."""
    return list_settings(SECTIONS[section])


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
        lines += _describe_section(section, class_, f"[{section}]")
    for group in GROUPS.values():
        header = f"[{group.name}.{group.example}]"
        lines += (
            line if line.startswith("# ") or not line else f"#{line}"
            for line in _describe_section(f"{group.name}.NAME", group.settings, header)
        )
    return "\n".join(lines)


def _describe_section(section: str, class_: type[Any], header: str) -> Iterator[str]:
    yield f"# {' '.join(str(class_.__doc__).split())}"
    yield header
    for key, (attribute, setting_) in list_settings(class_).items():
        value = getattr(class_(), attribute)
        after = " Takes effect on a reload." if setting_.reload else ""
        yield f"# {setting_.help}{after}"
        yield (
            _EXAMPLES.get((section, key))
            or f"{key} = {_time(value) if attribute.endswith('_s') else _written(value)}"
        )
        yield ""


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
    ("recovery", "lease_kubeconfig"): '#lease_kubeconfig = "/etc/vitald/lease.kubeconfig"',
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
    ("checks.NAME", "run"): 'run = ["/usr/bin/mountpoint", "-q", "/scratch"]',
    ("checks.NAME", "exit_codes"): 'exit_codes = "nhc"',
    ("notify.NAME", "url"): 'url = "https://hooks.example.com/vitald"',
    ("notify.NAME", "url_file"): '#url_file = "/etc/vitald/slack.url"',
    ("notify.NAME", "headers_file"): '#headers_file = "/etc/vitald/hook.headers"',
    ("notify.NAME", "secret_file"): '#secret_file = "/etc/vitald/hook.key"',
    ("notify.NAME", "routing_key_file"): '#routing_key_file = "/etc/vitald/pagerduty.key"',
    ("notify.NAME", "command"): '#command = ["/usr/local/libexec/vitald-notify/sns", "eu-west-1"]',
    ("notify.NAME", "ca"): '#ca = "/etc/vitald/hook-ca.crt"',
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
    for section, table in tables.items():
        if section in SECTIONS:
            sections[section] = read_section(section, SECTIONS[section], table, report)
        elif section in GROUPS:
            sections[section] = read_group(GROUPS[section], table, report)
        elif isinstance(table, dict):
            suggestion = tomlfile.suggest_word(section, (*SECTIONS, *GROUPS))
            report.add_error(section, "", f"unknown section{suggestion}")
        else:
            text = f"{section}: stands in no section{_suggest_sections(section)}"
            report.add_error_at((section,), text)
    config = _build_config(sections)
    _check_together(config, report.add_error)
    _check_overrides(config.catalog, report)
    if report.errors:
        raise ConfigError(report.errors)
    return replace(config, settings_hash=hash_settings(tables))


def hash_settings(tables: tomlfile.Table) -> int:
    """A number that is the same for files with the same settings, whatever their comments and
    order: the first 48 bits of a SHA-256; 0 where nothing is set.
    """
    if not tables:
        return 0
    text = json.dumps(tables, sort_keys=True, separators=(",", ":"), default=str)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:_HASH_BYTES], "big")


def _check_site_checks(
    checks: Mapping[str, SiteCheckSettings], wrong: Callable[[str, str, str], None]
) -> None:
    for name, check in checks.items():
        if not check.run:
            wrong(f"{SITE_CHECKS.name}.{name}", "", 'run is missing: run = ["/path/of/program"]')
        if 0.0 < check.every_s < _LEAST_RUN_S:
            wrong(f"{SITE_CHECKS.name}.{name}", "every", f"at least {_LEAST_RUN_S:g} s, or off")


def _build_config(sections: Mapping[str, Any]) -> Config:
    """From the settings of each section, by its name."""
    of_collectors = [values for name, values in sections.items() if name in COLLECTOR_SECTIONS]
    others = {name: values for name, values in sections.items() if name not in COLLECTOR_SECTIONS}
    return Config(**others, collectors=SectionValues(*of_collectors))


def _suggest_sections(key: str) -> str:
    """`: it belongs below [nvml]`; empty if no section has the key."""
    owners = [f"[{section}]" for section in SECTIONS if key in settings_of(section)]
    return f": it belongs below {' or '.join(owners)}" if owners else ""


def _check_together(config: Config, wrong: Callable[[str, str, str], None]) -> None:
    """Check settings that depend on each other."""
    for section in COLLECTOR_SECTIONS.values():
        section.check(config.collectors[section.settings], partial(wrong, section.name))
    for level in (1, 2):
        if 0.0 < getattr(config.dcgm, f"level_{level}_s") < _LEAST_RUN_S:
            wrong("dcgm", f"level_{level}", f"at least {_LEAST_RUN_S:g} s, or off")
    for name in POLLED:
        for key in ("every", "deadline"):
            if getattr(config.get_section(name), f"{key}_s") < MIN_PERIOD_S:
                wrong(name, key, f"at least {MIN_PERIOD_S:g} s")
    _check_site_checks(config.checks, wrong)
    check_notify(config.notify, wrong)
    check_kubernetes(config.kubernetes, config.recovery.mode, partial(wrong, "kubernetes"))
    if len(os.fsencode(config.socket_path)) > 107:
        wrong(
            "socket",
            "path",
            f"{config.socket_path} is longer than the 107 bytes that a Unix socket's path may have",
        )


def _check_overrides(settings: CatalogSettings, report: FileReport) -> None:
    if settings == CatalogSettings():
        return
    try:
        catalog.load_catalog(settings.profile, settings.overrides)
    except catalog.CatalogError as error:
        for mistake in error.errors:
            report.add_error_at(_find_override(mistake, settings.overrides), mistake)


# `[catalog.overrides]: [xid.79] action: ...`, as the catalogue reports a mistake
_OVERRIDE = re.compile(r"\[catalog\.overrides\]: \[(\w+)\.([^\]]*)\](?: (\w+))?")


def _find_override(mistake: str, overrides: Mapping[str, object]) -> tuple[str, ...]:
    """The path in the file of what a mistake of the catalogue is about."""
    if (found := _OVERRIDE.match(mistake)) is None:
        return ("catalog", "overrides")
    kind, name, key = found.groups(default="")
    code = f"{kind}/{name}"
    return ("catalog", "overrides", *([code] if code in overrides else [kind, name]), key)
