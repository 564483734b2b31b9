"""
Keeps the open findings as alerts of Alertmanager, with POST /api/v2/alerts.

It is a sink of the present state: what is open is sent again every RESEND_S, and ends by itself
HOLD_S after the last time, so that a publisher that dies leaves nothing that fires for ever. What
has ended is sent once more with its end. While the daemon is silent, the alerts of its findings go
on and one more says so: that nothing is known any more is no good news.

Each URL gets all alerts: the Alertmanagers of a cluster share silences and notifications, not
alerts.

Source: Prometheus documentation, "Alerts API" (fields, endsAt, clients send every 30 seconds to 3
minutes) and "Alertmanager: High availability"; tried against Alertmanager 0.25.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from vitald.model import Action, Status
from vitald.publish.notify.flags import StateReader
from vitald.publish.notify.formats.text import limit_line, limit_name
from vitald.publish.notify.http_post import HttpAnswer, HttpPoster
from vitald.publish.notify.receiver import NotificationRefused
from vitald.publish.notify.secret_file import SecretUnusable, read_headers
from vitald.publish.sink import PartlyWritten, SinkFailed
from vitald.publish.summary import DaemonSilent, FindingSummary, NodeSummary, PublishedState
from vitald.publish_sections import NotifySettings
from vitald.timestamps import format_rfc3339

RESEND_S = 120.0
RETRY_S = 15.0  # where one server of several failed
HOLD_S = 3 * RESEND_S  # two attempts may be lost
_TEST_S = 60.0
_MAX_UNLISTED = 400  # alerts that go on though the summary does not list their findings
_PATH = "/api/v2/alerts"
_CONTENT_TYPE = {"Content-Type": "application/json"}
_DOCS = "docs/findings.md"
# As packaging/prometheus/rules.yml has it, so that one routing tree serves both.
_PAGED = Action.REPLACE_NODE
_NO_ANCHOR = re.compile(r"[^A-Za-z0-9_-]")

Labels = tuple[tuple[str, str], ...]
# The server, the body, and what came back
SentAlert = tuple[str, bytes, Union[HttpAnswer, SinkFailed]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """`starts_at`: seconds since the epoch. The labels are its identity."""

    labels: Labels
    annotations: Labels
    starts_at: float


class AlertmanagerSink:
    """One `[[notify]]` of the type alertmanager."""

    def __init__(
        self, settings: NotifySettings, host: str, state_reader: StateReader | None = None
    ) -> None:
        """`state_reader`: where the states that are offered count drills otherwise."""
        self.name = f"notify/{settings.name}"
        self._settings = settings
        self._min_rank = Action(settings.min_action).rank
        self._host = host
        self._state_reader = state_reader
        self._receivers = [
            _Alertmanager(HttpPoster(build_url(url), ca=settings.ca, timeout_s=settings.timeout_s))
            for url in settings.urls
        ]
        self._known: tuple[Alert, ...] = ()
        self._has_failed = False  # a server, at the last attempt

    def get_recheck_s(self, state: PublishedState) -> float:  # noqa: ARG002
        """When the alerts are sent again, in seconds."""
        return RETRY_S if self._has_failed else RESEND_S

    async def write_state(self, state: PublishedState) -> bool:
        """Whether there was anything to send. Raises SinkFailed where no Alertmanager took it,
        PartlyWritten where some did.
        """
        alerts = self.list_alerts(await self._read_state(state))
        try:
            headers = read_headers(self._settings.headers_file)
        except SecretUnusable as error:
            raise SinkFailed(str(error)) from None
        failures: list[SinkFailed] = []
        did_send = False
        for receiver in self._receivers:
            try:
                did_send |= await receiver.send(alerts, headers, time.time())
            except SinkFailed as error:
                failures.append(error)
        self._has_failed = bool(failures)
        _report(failures, len(self._receivers))
        return did_send

    async def _read_state(self, offered: PublishedState) -> PublishedState:
        if self._state_reader is None or isinstance(offered, DaemonSilent):
            return offered
        state = await self._state_reader.read_state()
        if state is None:
            raise SinkFailed("the daemon gives no summary", is_expected=True)
        return state

    async def send_test(self, now: float) -> list[SentAlert]:
        """An alert that ends after _TEST_S, to each: the request's body and what came back. Raises
        SecretUnusable.
        """
        headers = read_headers(self._settings.headers_file)
        alert = self._build(
            {"alertname": "VitaldTest", "severity": "ticket"},
            {"summary": f"{self._host}: test notification, nothing is wrong"},
            now,
        )
        body = encode_alerts([build_document(alert, now + _TEST_S)])
        results: list[SentAlert] = []
        for receiver in self._receivers:
            try:
                answer: HttpAnswer | SinkFailed = await receiver.poster.send(
                    body, {**headers, **_CONTENT_TYPE}
                )
            except SinkFailed as error:
                answer = error
            results.append((receiver.poster.server, body, answer))
        return results

    def list_alerts(self, state: PublishedState) -> tuple[Alert, ...]:
        """What fires now."""
        if isinstance(state, DaemonSilent):
            return (*self._known, self._build_silence(state))
        chosen = [
            self._build_finding(finding)
            for finding in state.findings
            if finding.action.rank >= self._min_rank
            and not finding.accepted
            and (self._settings.drills or not finding.simulated)
        ]
        chosen += self._list_unlisted(state)
        if state.status is Status.UNKNOWN:
            chosen.append(self._build_unknown(state))
        self._known = merge_alerts(chosen)
        return self._known

    def _list_unlisted(self, state: NodeSummary) -> list[Alert]:
        """What fired before and may be open still: of a node with many findings, the summary has
        only some.
        """
        if len(state.findings) >= state.open_findings:
            return []
        listed = {_identify_finding(self._build_finding(finding)) for finding in state.findings}
        firing = {alert: _identify_finding(alert) for alert in self._known}
        unlisted = [alert for alert, named in firing.items() if named and named not in listed]
        return unlisted[:_MAX_UNLISTED]

    def _build_finding(self, finding: FindingSummary) -> Alert:
        severity = "page" if finding.action is _PAGED else "ticket"
        action = finding.action.phrase + finding.when.phrase
        kind, _, code = finding.code.partition("/")
        return self._build(
            {
                "alertname": "VitaldFinding",
                "component": finding.component,
                "kind": kind,
                "code": code,
                "action": finding.action.value,
                "when": finding.when.value,
                "severity": severity,
                "simulated": "true" if finding.simulated else "",
            },
            {
                "summary": f"{self._host}: {finding.component}: {finding.code}: {action}",
                "todo": action,
                "runbook": f"{_DOCS}#{find_anchor(finding.code)}",
                "device": finding.device,
                "reason": finding.reason,
            },
            finding.since,
        )

    def _build_unknown(self, summary: NodeSummary) -> Alert:
        line = summary.lines[0] if summary.lines else summary.reason
        return self._build(
            {"alertname": "VitaldNodeUnknown", "severity": "ticket"},
            {
                "summary": f"{self._host}: state unknown: {line}",
                "todo": "see vitald status on the node",
                "reason": summary.reason,
            },
            summary.changed_at,
        )

    def _build_silence(self, state: DaemonSilent) -> Alert:
        return self._build(
            {"alertname": "VitaldSilent", "severity": "ticket"},
            {
                "summary": f"{self._host}: vitald does not answer: {state.detail}",
                "todo": "see systemctl status vitald on the node",
            },
            state.since,
        )

    def _build(
        self, labels: dict[str, str], annotations: dict[str, str], starts_at: float
    ) -> Alert:
        named = {"instance": self._host, "job": "vitald", **labels}
        return Alert(
            labels=_list_given(named, limit_name),
            annotations=_list_given(annotations, limit_line),
            starts_at=starts_at,
        )


class _Alertmanager:
    """One server, and what fires there by what was sent."""

    def __init__(self, poster: HttpPoster) -> None:
        self.poster = poster
        self._firing: dict[Labels, Alert] = {}

    async def send(self, alerts: Sequence[Alert], headers: dict[str, str], now: float) -> bool:
        """Whether there was anything to send. Raises SinkFailed."""
        wanted = {alert.labels: alert for alert in alerts}
        ended = [alert for labels, alert in self._firing.items() if labels not in wanted]
        documents = [
            *(build_document(alert, now + HOLD_S) for alert in wanted.values()),
            *(build_document(alert, now) for alert in ended),
        ]
        if not documents:
            return False
        try:
            await self.poster.post(encode_alerts(documents), {**headers, **_CONTENT_TYPE})
        except NotificationRefused as error:
            # Nothing is lost by another attempt: the present state is sent again anyway.
            raise SinkFailed(str(error)) from None
        self._firing = wanted
        return True


def _identify_finding(alert: Alert) -> tuple[str, ...]:
    """The labels that the alert of a finding keeps while it is open; none of another alert."""
    labels = dict(alert.labels)
    return tuple(labels[name] for name in ("component", "kind", "code") if name in labels)


def merge_alerts(alerts: Sequence[Alert]) -> tuple[Alert, ...]:
    """One for each set of labels, with the earliest start: Alertmanager knows no more."""
    merged: dict[Labels, Alert] = {}
    for alert in alerts:
        known = merged.get(alert.labels)
        if known is None or alert.starts_at < known.starts_at:
            merged[alert.labels] = alert
    return tuple(merged.values())


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


def encode_alerts(documents: Sequence[dict[str, object]]) -> bytes:
    """The body of a request."""
    return json.dumps(documents, separators=(",", ":")).encode("ascii")


def build_url(url: str) -> str:
    """The address of the API for that of an Alertmanager, which may have a path before it."""
    return url if url.endswith(_PATH) else f"{url.rstrip('/')}{_PATH}"


def find_anchor(code: str) -> str:
    """`xid-79` for `xid/79`."""
    return _NO_ANCHOR.sub("-", code)


def _list_given(values: Mapping[str, str], limit: Callable[[str], str]) -> Labels:
    """Without those that are empty, which are as good as absent."""
    return tuple((name, limit(value)) for name, value in values.items() if value)


def _report(failures: Sequence[SinkFailed], receivers: int) -> None:
    if not failures:
        return
    text = "; ".join(str(error) for error in failures)
    if len(failures) < receivers:
        raise PartlyWritten(text)
    waits = [error.retry_after_s for error in failures if error.retry_after_s is not None]
    raise SinkFailed(
        text,
        retry_after_s=max(waits) if waits else None,
        is_unreachable=all(error.is_unreachable for error in failures),
    )
