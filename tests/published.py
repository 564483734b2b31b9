"""States of a node as the publisher reads them: one that is healthy, and the summary of an Xid."""

from __future__ import annotations

from vitald.model import Action, Status, When
from vitald.publish.summary import FindingSummary, NodeSummary

HEALTHY_NODE = NodeSummary(
    status=Status.HEALTHY,
    action=Action.NONE,
    reason="Healthy",
    lines=(),
    reboot_reason="",
    replacement_reason="",
    changed_at=0.0,
    findings=(),
    open_findings=0,
    is_complete=True,
    accelerators=("gpu",),
    boot_id="b",
)
XID_79 = FindingSummary(
    id=1,
    component="gpu/0000:65:00.0",
    code="xid/79",
    reason="Xid79",
    action=Action.REBOOT_NODE,
    when=When.NOW,
    since=0.0,
    confirmed=True,
    simulated=False,
    due=True,
    device="GPU-1",
)
