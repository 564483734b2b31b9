"""Sections of the configuration that `vitald publish` reads: keys, defaults and help."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from vitald import tomlfile
from vitald.checking import Unexpected, read_flag, read_match
from vitald.model import Action
from vitald.settings import one_of, read_names, read_path, read_period, setting

# A DNS subdomain, as the prefix of a label or condition: Kubernetes, "Labels and Selectors". It is
# shorter than the 253 characters allowed, so that a condition's type stays within 316.
_PREFIX = re.compile(r"(?=.{1,200}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
                     r"(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")  # fmt: skip
_NODE = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_SERVER = re.compile(r"https://[A-Za-z0-9.:_\[\]-]+(/[A-Za-z0-9./_-]*)?")
CONDITION_SETS = ("own", "eks", "npd", "hyperpod")
_RESERVED = ("kubernetes.io", "k8s.io")


def _read_prefix(value: object) -> str:
    prefix = read_match(value, _PREFIX, 'a DNS name such as "vitald.io"')
    if prefix in _RESERVED or prefix.endswith(tuple(f".{name}" for name in _RESERVED)):
        raise ValueError(f"{prefix!r} is reserved for Kubernetes itself")
    return prefix


read_node_name = partial(read_match, pattern=_NODE, expected="the name of a Node object")
_read_server = partial(
    read_match, pattern=_SERVER, expected='an address such as "https://10.0.0.1:6443"'
)


def _read_condition_sets(value: object) -> tuple[str, ...]:
    names = read_names(value)
    for name in names:
        if name not in CONDITION_SETS:
            raise Unexpected(f"a list of {', '.join(CONDITION_SETS)}", name)
    return names


def _read_textfile(value: object) -> Path:
    path = read_path(value)
    if path.suffix != ".prom":  # node_exporter reads no others
        raise Unexpected("the path of a file *.prom", value)
    return path


def _read_program(value: object) -> tuple[str, ...]:
    argv = () if value == [] else read_names(value)
    if argv and not argv[0].startswith("/"):
        raise Unexpected("a list of the absolute path of a program and its arguments", value)
    if any("\0" in argument for argument in argv):
        raise Unexpected("a list of texts without the character NUL", value)
    return argv


# The daemon shows a receiver as the sink "notify/NAME".
NOTIFY_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
MAX_NOTIFY = 10  # with all others, there are no more sinks than the daemon takes reports of
_MAX_URLS, _MAX_URL = 8, 2048
_LEAST_TIMEOUT_S, _MOST_TIMEOUT_S, _LEAST_REPEAT_S = 1.0, 60.0, 600.0
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|::1")
CHANGES = ("opened", "escalated", "cleared", "flags")
_MAX_LABEL = 63  # bytes between the dots of a host name
_URL_WORDS = "an address https://HOST/... without a user name; http:// only for this machine itself"


def read_url(value: object) -> str:
    """The value is not repeated in an error: it may hold a secret."""
    try:
        url = urlsplit(value if isinstance(value, str) else "")
        is_safe = url.scheme == "https" or (
            url.scheme == "http" and bool(_LOOPBACK.fullmatch(url.hostname or ""))
        )
        is_usable = is_safe and url.username is None and url.port != 0
        is_usable = is_usable and _is_host_name(url.hostname or "")
    except ValueError:  # of a port or an address of IPv6
        is_usable = False
    text = str(value)
    if not is_usable or len(text) > _MAX_URL or not (text.isascii() and text.isprintable()):
        raise ValueError(f"expected {_URL_WORDS}")
    if " " in text or "#" in text:
        raise ValueError("expected an address without blanks and #")
    return text


def _is_host_name(host: str) -> bool:
    """Whether it may be resolved: no label is empty or too long. An address has one label, too."""
    labels = host.removesuffix(".").split(".")
    return all(1 <= len(label) <= _MAX_LABEL for label in labels)


def _read_urls(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if not 1 <= len(values) <= _MAX_URLS:
        raise ValueError(f"expected an address, or a list of at most {_MAX_URLS}")
    return tuple(read_url(each) for each in values)


def _read_changes(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or any(each not in CHANGES for each in value):
        raise Unexpected(f"a list of {', '.join(CHANGES)}", value)
    return tuple(str(each) for each in value)


def _read_timeout(value: object) -> float:
    seconds = tomlfile.parse_duration(value)
    if not _LEAST_TIMEOUT_S <= seconds <= _MOST_TIMEOUT_S:
        raise Unexpected("from 1s to 60s", value)
    return seconds


def _read_repeat(value: object) -> float:
    seconds = read_period(value)
    if 0.0 < seconds < _LEAST_REPEAT_S:
        raise Unexpected('at least 10m, or "off"', value)
    return seconds


def _read_heartbeat(value: object) -> float:
    seconds = tomlfile.parse_duration(value)
    if seconds < 60.0:
        raise Unexpected("at least 60s", value)
    return seconds


def _find_state_folder() -> Path:
    """What systemd gives (`StateDirectory=`), else `/var/lib/vitald-publish`."""
    first = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(first) if first.startswith("/") else Path("/var/lib/vitald-publish")


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
        partial(read_match, pattern=re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*"),
                expected="the name of a user"),
        "User that it runs as. The daemon accepts its reports, and its requests to release the GPUs"
        " for a driver upgrade.",
    )  # fmt: skip
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """What `vitald publish` writes to the node's Node object (docs/kubernetes.md)."""

    enabled: bool = setting(False, read_flag, "Write to the Kubernetes API.")
    node: str = setting(
        "",
        read_node_name,
        "Name of this node's Node object. Default: the variable NODE_NAME, then the host name.",
    )
    server: str = setting(
        "",
        _read_server,
        "Address of the API server. Default: that of the cluster that this pod runs in.",
    )
    ca: Path | None = setting(
        None, read_path, "File of the certificate authority of the API server."
    )
    token_file: Path | None = setting(
        None, read_path, "File with a bearer token. It is read again when it changes."
    )
    client_certificate: Path | None = setting(None, read_path, "File of a client certificate.")
    client_key: Path | None = setting(None, read_path, "File of its key.")
    exec: tuple[str, ...] = setting(
        (),
        _read_program,
        "A credential plugin and its arguments (client.authentication.k8s.io/v1), as a kubeconfig"
        " names it.",
    )
    impersonate: bool = setting(
        False,
        read_flag,
        "Write as system:node:NODE, by constrained impersonation (Kubernetes 1.36).",
    )
    prefix: str = setting(
        "vitald.io", _read_prefix, "Prefix of conditions, labels, annotations and taints."
    )
    conditions: tuple[str, ...] = setting(
        ("own",),
        _read_condition_sets,
        '"own": PREFIX/Healthy, PREFIX/RebootRequired, PREFIX/ReplacementRequired,'
        ' PREFIX/Validated. "eks", "npd", "hyperpod": what the repair controllers of EKS, GKE or'
        " SageMaker HyperPod read.",
    )
    labels: bool = setting(True, read_flag, "Write the labels PREFIX/status and PREFIX/action.")
    annotation: bool = setting(
        True,
        read_flag,
        "Write the open findings as JSON to the annotation PREFIX/findings, and the advice to save"
        " a checkpoint to PREFIX/save-advised.",
    )
    events: bool = setting(True, read_flag, "Create an Event for each change of a finding.")
    taint: str = setting(
        "off",
        one_of("off", "PreferNoSchedule", "NoSchedule"),
        "Effect of the taint PREFIX/unhealthy of an unhealthy node. It requires the right to patch"
        " nodes.",
    )
    heartbeat_s: float = setting(
        tomlfile.parse_duration("5m"),
        _read_heartbeat,
        "How often the heartbeat of the conditions is written while nothing changes, at least 60s.",
    )
    driver_upgrades: bool = setting(
        False,
        read_flag,
        "Release the GPUs while the NVIDIA GPU Operator upgrades the driver of this node.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    """A receiver of notifications (docs/notifications.md). There may be several."""

    name: str = setting(
        "",
        partial(
            read_match,
            pattern=NOTIFY_NAME,
            expected="1 to 32 small letters, digits, _ or -, a letter first",
        ),
        "Its name, which no other has: in `vitald status`, the metrics and the log.",
    )
    type: str = setting(
        "webhook",
        one_of("webhook", "alertmanager", "exec"),
        '"webhook": an HTTP request for each. "alertmanager": the open findings, as alerts. "exec":'
        " a program for each.",
    )
    urls: tuple[str, ...] = setting(
        (),
        _read_urls,
        "Address for webhook and alertmanager, with https; http only for this machine itself."
        " For alertmanager also a list: each of them gets all alerts.",
    )
    url_file: Path | None = setting(
        None,
        read_path,
        "File of the address of a webhook, instead of url: that of a chat channel is a secret.",
    )
    format: str = setting(
        "vitald",
        one_of("vitald", "cloudevents", "slack", "pagerduty"),
        "Body of the request of a webhook.",
    )
    on: tuple[str, ...] = setting(
        CHANGES,
        _read_changes,
        "Which changes are sent. flags: the node's status, or whether a reboot or replacement is"
        " required or due.",
    )
    min_action: str = setting(
        Action.INSPECT.value,
        one_of(*(action.value for action in Action)),
        "Findings that require less are not sent.",
    )
    headers_file: Path | None = setting(
        None, read_path, 'File of more headers, "Name: value" on each line.'
    )
    secret_file: Path | None = setting(
        None, read_path, "File of the key that requests are signed with."
    )
    routing_key_file: Path | None = setting(
        None, read_path, "File of PagerDuty's integration key, for the format pagerduty."
    )
    ca: Path | None = setting(
        None, read_path, "File of the certificate authority. Default: those of the system."
    )
    timeout_s: float = setting(
        tomlfile.parse_duration("10s"), _read_timeout, "Longest time for a request, 1s to 60s."
    )
    command: tuple[str, ...] = setting(
        (),
        _read_program,
        "Program and its arguments, for exec. It gets the notification as JSON on standard input.",
    )
    drills: bool = setting(False, read_flag, "Simulated findings, too.")
    repeat_s: float = setting(
        0.0, _read_repeat, "How often what is still open is sent again, at least 10m."
    )

    @property
    def url(self) -> str:
        """The only address of a webhook."""
        return self.urls[0] if self.urls else ""


# The keys that only some types have a use for
_KEYS_OF_TYPES = {
    "urls": ("webhook", "alertmanager"),
    "url_file": ("webhook",),
    "format": ("webhook",),
    "on": ("webhook", "exec"),
    "headers_file": ("webhook", "alertmanager"),
    "secret_file": ("webhook",),
    "routing_key_file": ("webhook",),
    "ca": ("webhook", "alertmanager"),
    "timeout_s": ("webhook", "alertmanager"),
    "command": ("exec",),
    "repeat_s": ("webhook", "exec"),
}


def check_notify(entries: Sequence[NotifySettings], wrong: Callable[[int, str, str], None]) -> None:
    """Report, as (place in the list, key, problem), what is wrong only in combination."""
    for place, entry in enumerate(entries):
        report = partial(wrong, place)
        if not entry.name:
            report("name", "it is missing")
        elif entry.name in [former.name for former in entries[:place]]:
            report("name", "an entry before this one has the same")
        if place == MAX_NOTIFY:
            report("", f"there are more than {MAX_NOTIFY}")
        _check_type(entry, report)


def _check_type(entry: NotifySettings, wrong: Callable[[str, str], None]) -> None:
    for key, types in _KEYS_OF_TYPES.items():
        if entry.type not in types and getattr(entry, key) != getattr(NotifySettings(), key):
            name = "url" if key == "urls" else key.removesuffix("_s")
            wrong(name, f"it has no effect for the type {entry.type}")
    if entry.type == "exec" and not entry.command:
        wrong("command", "the type exec needs it")
    if "cleared" in entry.on and not {"opened", "escalated"}.intersection(entry.on):
        wrong("on", "cleared needs opened or escalated: only the end of what was sent is")
    if entry.type == "webhook" and bool(entry.urls) == bool(entry.url_file):
        wrong("url", "the type webhook needs it or url_file, not both")
    if entry.type == "alertmanager" and not entry.urls:
        wrong("url", "the type alertmanager needs it")
    if entry.type == "webhook" and len(entry.urls) > 1:
        wrong("url", "a webhook has one: make an entry for each")
    if (entry.type, entry.format) == ("webhook", "pagerduty") and entry.routing_key_file is None:
        wrong("routing_key_file", "the format pagerduty needs it")
    if entry.format != "pagerduty" and entry.routing_key_file is not None:
        wrong("routing_key_file", "only the format pagerduty has a use for it")


def check_kubernetes(
    settings: KubernetesSettings, recovery_mode: str, wrong: Callable[[str, str], None]
) -> None:
    """Report, as (key, problem), what is wrong only in combination, where it is in use."""
    if not settings.enabled:
        return
    if not settings.server and any(
        (settings.ca, settings.token_file, settings.client_certificate, settings.exec)
    ):
        wrong("server", "credentials are given, but no address of the API server")
    if bool(settings.client_key) != bool(settings.client_certificate):
        wrong("client_key", "client_certificate and client_key are given together")
    if settings.token_file and settings.exec:
        wrong("exec", "either token_file or exec")
    if "hyperpod" in settings.conditions and recovery_mode != "automatic":
        wrong(
            "conditions",
            '"hyperpod" orders repairs from SageMaker: set [recovery] mode = "automatic"',
        )
