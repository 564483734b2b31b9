"""How `vitald recover` reports: a decision as a sentence, and log lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from vitald.log_lines import format_record, is_journal
from vitald.recovery.decision import Step
from vitald.text import escape_unprintable
from vitald.timestamps import format_rfc3339

_ACTIONS = {"reboot": "reboot the node", "replace": "have the node replaced"}
_NO_ACTION = "act"  # the request cannot be read


def format_decision(decision: Mapping[str, object], *, dry_run: bool = False) -> str:
    """A decision, as the decision log has it, on one line. `dry_run`: it was not carried out."""
    what = _ACTIONS.get(str(decision.get("action")), _NO_ACTION)
    text = _format_step(decision, what, dry_run=dry_run)
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


def emit_log_line(form: str, level: str, event: str, **fields: object) -> None:
    """Write a log line to standard error. `form`: "text" or "json". Without the daemon's logging
    library: what runs as root imports only our code and Python's.
    """
    record = {"event": event, **fields, "level": level, "timestamp": format_rfc3339(time.time())}
    line = format_record(record, form, to_journal=is_journal(sys.stderr))
    print(line, file=sys.stderr, flush=True)
