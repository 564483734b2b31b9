"""Metrics of automatic recovery: what root is requested to do, and why it does not."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from vitald.model.words import Repair
from vitald.recovery.decision import Step
from vitald.recovery.requester import RecoveryRequester


def collect_metrics(requester: RecoveryRequester) -> Iterator[Metric]:
    request, decision = requester.request, requester.decision
    family = GaugeMetricFamily(
        "vitald_recovery_requested",
        "1 while root is requested to do this to the node.",
        labels=["repair"],
    )
    for kind in Repair:
        family.add_metric([kind.value], request is not None and request.kind is kind)
    yield family
    for step, name, text in (
        (
            Step.REFUSED,
            "vitald_recovery_refused",
            "1 while root refuses the current request because of this check.",
        ),
        (
            Step.WAIT,
            "vitald_recovery_waits",
            "1 while root waits with the current request because of this check.",
        ),
    ):
        reasons = GaugeMetricFamily(name, text, labels=["check"])
        if decision is not None and decision.step is step:
            for check in decision.checks:
                reasons.add_metric([check], 1)
        yield reasons
