"""What operators do with findings: each action is queued behind the events before it."""

from __future__ import annotations

from vitald.core.evaluator import OperatorAction
from vitald.core.work_items import ActionItem
from vitald.core.work_queue import WorkQueue
from vitald.ledger.schema import AuditRecord
from vitald.model import Fields, Finding
from vitald.model.codes import ACCEPTED, CLEARED, REMEDY_BEGUN


class FindingActions:
    """Queues the actions. Each returns the finding once the action is stored and published; None
    if it is not open.
    """

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue

    async def clear_finding(
        self, finding: int, by: str, audit: AuditRecord, *, replaced: bool = False
    ) -> Finding | None:
        """Close a finding; `replaced`: because its device was replaced."""
        return await self._queue_action(CLEARED, finding, by, audit, replaced=replaced)

    async def begin_remedy(self, finding: int, by: str, audit: AuditRecord) -> Finding | None:
        """Record that an operator begins the required action of a finding."""
        return await self._queue_action(REMEDY_BEGUN, finding, by, audit)

    async def accept_finding(
        self, finding: int, by: str, audit: AuditRecord, seconds: float
    ) -> Finding | None:
        """Accept a finding for so many seconds; 0 ends that."""
        until = audit.time + seconds if seconds else 0.0
        return await self._queue_action(ACCEPTED, finding, by, audit, fields={"until": until})

    async def _queue_action(
        self,
        code: str,
        finding: int,
        by: str,
        audit: AuditRecord,
        *,
        replaced: bool = False,
        fields: Fields | None = None,
    ) -> Finding | None:
        action = OperatorAction(
            code=code, finding=finding, by=by, audit=audit, replaced=replaced, fields=fields or {}
        )
        item = ActionItem(action)
        self._queue.add_item(item)
        return await item.done
