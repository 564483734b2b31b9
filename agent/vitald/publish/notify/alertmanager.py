"""
Keeps the open findings as alerts of Alertmanager, with POST /api/v2/alerts.

It is a sink of the present state: what is open is sent again every RESEND_S, and ends by itself
HOLD_S after the last time, so that a publisher that dies leaves nothing that fires for ever. What
has ended goes on for `settle`, as Prometheus' keep_firing_for, and is then sent with its end. While
the daemon is silent, the alerts of its findings go on.

Each URL gets all alerts: the Alertmanagers of a cluster share silences and notifications, not
alerts.

Source: Prometheus documentation, "Alerts API" (fields, endsAt, clients send every 30 seconds to 3
minutes) and "Alertmanager: High availability"; tried against Alertmanager 0.25.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitald.model.words import Action, Status
from vitald.publish.notify.formats import encode_json
from vitald.publish.notify.formats.text import limit_line, limit_name
from vitald.publish.notify.http_post import HttpPoster
from vitald.publish.notify.receiver import NotificationRefused, QuietTime
from vitald.publish.notify.secret_file import SecretUnusable, read_headers
from vitald.publish.notify.settings import NotifySettings
from vitald.publish.sink import SinkFailed
from vitald.publish.summary import DaemonSilent, FindingSummary, NodeSummary, PublishedState
from vitald.timestamps import format_rfc3339

RESEND_S = 120.0
HOLD_S = 3 * RESEND_S  # two attempts may be lost
_TEST_S = 60.0
_MAX_ALERTS = 500
_PATH = "/api/v2/alerts"
# As packaging/prometheus/rules.yml has it, so that one routing tree serves both.
_PAGED = Action.REPLACE_NODE

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """`starts_at`: seconds since the epoch. The labels are its identity. `subject`: what it is
    about, whatever that requires now.
    """

    subject: tuple[str, ...]
    labels: Labels
    annotations: Labels
    starts_at: float


class AlertmanagerSink:
    """One `[notify.NAME]` of the type alertmanager."""

    def __init__(self, name: str, settings: NotifySettings, host: str, quiet: QuietTime) -> None:
        self.name = name
        self._headers_file = settings.headers_file
        self._alerts = FiringAlerts(settings, host)
        self._quiet = quiet
        self._quiet_left = 0.0
        self._servers = [_Alertmanager(poster) for poster in build_posters(settings)]

    def get_recheck_s(self, state: PublishedState) -> float:  # noqa: ARG002
        """When the alerts are sent again, in seconds."""
        return self._quiet_left or RESEND_S

    async def write_state(self, state: PublishedState) -> bool:
        """Whether there was anything to send. Raises SinkFailed where not all have it."""
        alerts = self._alerts.list_alerts(state, time.monotonic())
        self._quiet_left = await self._quiet.find_left()
        if self._quiet_left:
            return False
        try:
            headers = build_headers(self._headers_file)
        except SecretUnusable as error:
            raise SinkFailed(str(error)) from None
        failures: list[SinkFailed] = []
        did_send = False
        for server in self._servers:
            try:
                did_send |= await server.send(alerts, headers)
            except SinkFailed as error:
                failures.append(error)
        if failures:
            raise _join_failures(failures)
        return did_send


class FiringAlerts:
    """Which alerts a state makes, and which of former states still fire."""

    def __init__(self, settings: NotifySettings, host: str) -> None:
        self._settings = settings
        self._min_rank = Action(settings.min_action).rank
        self._host = host
        self._seen: dict[tuple[str, ...], tuple[Alert, float]] = {}  # by subject; when last
        self._unknown_since: float | None = None  # silent or unknown, on the monotonic clock

    def list_alerts(self, state: PublishedState, now: float) -> tuple[Alert, ...]:
        """What fires. `now`: on the monotonic clock."""
        findings = self._list_findings(state) if isinstance(state, NodeSummary) else []
        self._seen |= {alert.subject: (alert, now) for alert in findings}
        # What is not listed may be open still: of many findings, a summary has only some.
        is_whole = isinstance(state, NodeSummary) and len(state.findings) >= state.open_findings
        firing = {
            subject: (alert, seen)
            for subject, (alert, seen) in self._seen.items()
            if not is_whole or now - seen < self._settings.settle_s or seen == now
        }
        self._seen = dict(list(firing.items())[-_MAX_ALERTS:])
        return (*(alert for alert, _ in self._seen.values()), *self._list_unknown(state, now))

    def _list_findings(self, state: NodeSummary) -> list[Alert]:
        return [
            self._build_finding(finding)
            for finding in state.findings
            if finding.action.rank >= self._min_rank and not finding.accepted
        ]

    def _list_unknown(self, state: PublishedState, now: float) -> list[Alert]:
        """That nothing is known, once it has lasted."""
        if isinstance(state, NodeSummary) and state.status is not Status.UNKNOWN:
            self._unknown_since = None
            return []
        if self._unknown_since is None:
            self._unknown_since = now
        if now - self._unknown_since < self._settings.settle_s:
            return []
        return [self._build_unknown(state)]

    def _build_finding(self, finding: FindingSummary) -> Alert:
        instruction = finding.action.phrase + finding.when.phrase
        kind, _, code = finding.code.partition("/")
        drill = "SIMULATED: " if finding.simulated else ""
        return build_alert(
            self._host,
            (finding.component, finding.code, str(finding.simulated)),
            {
                "alertname": "VitaldFinding",
                "component": finding.component,
                "kind": kind,
                "code": code,
                "action": finding.action.value,
                "when": finding.when.value,
                "severity": "page" if finding.action is _PAGED else "ticket",
                "simulated": str(finding.simulated).lower(),
            },
            {
                "summary": f"{drill}{self._host}: {finding.component}: {finding.code}:"
                f" {instruction}",
                "description": f"{instruction}; on the node: vitald why {finding.id}",
                "device": finding.device,
            },
            finding.since,
        )

    def _build_unknown(self, state: PublishedState) -> Alert:
        if isinstance(state, DaemonSilent):
            what, since = f"vitald does not answer: {state.detail}", state.since
            description = "on the node: systemctl status vitald"
        else:
            what, since = f"state unknown: {'; '.join(state.lines[:1])}", state.changed_at
            description = "on the node: vitald status"
        return build_alert(
            self._host,
            ("unknown",),
            {"alertname": "VitaldNodeUnknown", "severity": "ticket"},
            {"summary": f"{self._host}: {what}", "description": description},
            since,
        )


def build_alert(
    host: str,
    subject: tuple[str, ...],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    starts_at: float,
) -> Alert:
    """Without what is empty. `starts_at`: seconds since the epoch."""
    named = {"instance": host, "job": "vitald", **labels}
    return Alert(
        subject=subject,
        labels=_list_given(named, limit_name),
        annotations=_list_given(annotations, limit_line),
        starts_at=starts_at,
    )


def build_test(host: str, now: float) -> list[dict[str, object]]:
    """An alert that ends after a minute. `now`: seconds since the epoch."""
    alert = build_alert(
        host,
        ("test",),
        {"alertname": "VitaldTest", "severity": "ticket"},
        {"summary": f"{host}: test notification, nothing is wrong"},
        now,
    )
    return [build_document(alert, now + _TEST_S)]


def build_posters(settings: NotifySettings) -> list[HttpPoster]:
    """One for each Alertmanager."""
    return [
        HttpPoster(build_url(url), ca=settings.ca, timeout_s=settings.timeout_s)
        for url in settings.url
    ]


def build_headers(headers_file: Path | None) -> dict[str, str]:
    """Of a request. Raises SecretUnusable."""
    return {**read_headers(headers_file), "Content-Type": "application/json"}


class _Alertmanager:
    """One server, and what fires there by what was sent."""

    def __init__(self, poster: HttpPoster) -> None:
        self.poster = poster
        self._firing: dict[Labels, Alert] = {}
        self._sent_at = float("-inf")  # on the monotonic clock

    async def send(self, alerts: Sequence[Alert], headers: Mapping[str, str]) -> bool:
        """Whether there was anything to send. Raises SinkFailed."""
        wanted = {alert.labels: alert for alert in alerts}
        is_due = time.monotonic() >= self._sent_at + RESEND_S / 2
        if wanted == self._firing and not is_due:  # it is another server's turn
            return False
        now = time.time()
        ended = [alert for labels, alert in self._firing.items() if labels not in wanted]
        documents = [
            *(build_document(alert, now + HOLD_S) for alert in wanted.values()),
            *(build_document(alert, now) for alert in ended),
        ]
        if not documents:
            return False
        try:
            await self.poster.post(encode_json(documents), headers)
        except NotificationRefused as error:
            # The present state is sent again anyway: nothing is lost by another attempt.
            raise SinkFailed(str(error)) from None
        self._firing, self._sent_at = wanted, time.monotonic()
        return True


def build_document(alert: Alert, ends_at: float) -> dict[str, object]:
    """As the API takes it. `ends_at`: seconds since the epoch; never before its start, which the
    API refuses.
    """
    return {
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "startsAt": format_rfc3339(alert.starts_at),
        "endsAt": format_rfc3339(max(ends_at, alert.starts_at)),
    }


def build_url(url: str) -> str:
    """The address of the API for that of an Alertmanager, which may have a path before it."""
    return url if url.endswith(_PATH) else f"{url.rstrip('/')}{_PATH}"


def _list_given(values: Mapping[str, str], limit: Callable[[str], str]) -> Labels:
    """Without those that are empty, which are as good as absent."""
    return tuple((name, limit(value)) for name, value in values.items() if value)


def _join_failures(failures: Sequence[SinkFailed]) -> SinkFailed:
    waits = [error.retry_after_s for error in failures if error.retry_after_s is not None]
    return SinkFailed(
        "; ".join(str(error) for error in failures),
        retry_after_s=max(waits, default=None),
        is_unreachable=all(error.is_unreachable for error in failures),
    )
