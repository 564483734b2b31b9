"""How `vitald recovery run` reports: a decision as a sentence, and log lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from vitald.log.lines import format_record, is_journal
from vitald.model import Repair
from vitald.recovery.decision import SAME_BOOT, Step
from vitald.recovery.decision_log import BEGUN, ORDERED
from vitald.text import escape_unprintable
from vitald.timestamps import format_rfc3339

_ACTIONS = {Repair.REBOOT.value: "reboot the node", Repair.REPLACE.value: "have the node replaced"}
_NO_ACTION = "act"  # the request cannot be read


def format_decision(
    decision: Mapping[str, object], *, dry_run: bool = False, boot_id: str = ""
) -> str:
    """A decision, as the decision log has it, on one line. `dry_run`: it was not carried out.
    `boot_id`: of the current boot, which shows whether a reboot has happened.
    """
    what = _ACTIONS.get(str(decision.get("action")), _NO_ACTION)
    text = _format_step(decision, what, dry_run=dry_run) + _describe_effect(decision, boot_id)
    times = decision.get("times")
    if isinstance(times, int) and times > 1:
        text += f" ({times} times)"
    return escape_unprintable(text)


def _format_step(decision: Mapping[str, object], what: str, *, dry_run: bool) -> str:
    step, why = decision.get("step"), decision.get("why")
    if step == Step.ACT.value:
        return f"would {what}" if dry_run else f"{what}: {decision.get('outcome')}"
    if step == Step.DRAIN.value:
        if dry_run:
            return f"would keep new work away, and then {what} once nothing runs here"
        return f"drain, to {what}"
    if step == Step.WAIT.value:
        return f"{what}: waits: {why}"
    return f"{'would refuse' if dry_run else 'refused'} to {what}: {why}"


def _describe_effect(decision: Mapping[str, object], boot_id: str) -> str:
    is_reboot = decision.get("action") == Repair.REBOOT.value
    if not boot_id or not is_reboot or decision.get("outcome") not in (BEGUN, ORDERED):
        return ""
    same = decision.get("bootId") == boot_id
    return f", {SAME_BOOT}" if same else ", and the node has been booted since"


def emit_log_line(form: str, level: str, event: str, **fields: object) -> None:
    """Write a log line to standard error. `form`: "text" or "json". Without the daemon's logging
    library: what runs as root imports only our code and Python's.
    """
    record = {"event": event, **fields, "level": level, "timestamp": format_rfc3339(time.time())}
    line = format_record(record, form, to_journal=is_journal(sys.stderr))
    print(line, file=sys.stderr, flush=True)
