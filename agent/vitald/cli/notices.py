"""
What a person must know of a node besides its findings, in one line each: for `vitald status` and
the status page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from vitald.cli import render
from vitald.text import count_noun, join_first

if TYPE_CHECKING:
    from vitald.server import schema

_MAX_NAMES = 6
_MAX_WAIT_S = 30.0  # of a sink of `vitald publish`
_PUBLISHER_LOG = "journalctl -u vitald-publish"


class Notice(NamedTuple):
    """One line in three parts, of which the state is emphasized. Control characters are escaped."""

    subject: str
    state: str = ""
    detail: str = ""

    @property
    def text(self) -> str:
        return "".join(self)


def are_all_simulated(status: schema.NodeStatus) -> bool:
    """Whether each open finding is simulated; False where the answer leaves some out."""
    findings = status["findings"]
    is_whole = len(findings) == status["openFindings"]
    return is_whole and all(finding["simulated"] for finding in findings)


def list_notices(status: schema.NodeStatus) -> Iterator[Notice]:
    """What does not work as it should, and what is under way."""
    yield from _list_ledger(status["ledger"])
    yield from _list_kernel_log(status["kernelLog"])
    yield from _list_recovery(status.get("recovery"))
    yield from _list_publishers(status)
    yield from _list_configuration(status.get("configuration"))


def list_advice(status: schema.NodeStatus) -> Iterator[Notice]:
    """What requires no action by itself: devices with a record of faults."""
    for suspect in status["suspects"]:
        if not suspect["suspect"]:
            continue
        parts = ", ".join(
            f"{part['count']} {str(part['kind']).replace('_', ' ')}" for part in suspect["parts"]
        )
        where = suspect["component"]
        if suspect["device"] != where:
            where = f"{where} ({suspect['device']})"
        score = f"score {suspect['score']} in 28 days"
        yield Notice(f"suspect {render.escape_text(where)}: {score}: {parts}")


def _list_ledger(ledger: schema.ApiLedger) -> Iterator[Notice]:
    if not ledger["ok"]:
        yield Notice(
            "ledger: ",
            "CANNOT BE WRITTEN",
            f": {render.escape_text(ledger['error'])};"
            f" {count_noun(ledger['unsavedEvents'], 'event')} held in memory: check space, mount"
            " and permissions of the state folder",
        )


def _list_kernel_log(kernel: schema.KernelLog) -> Iterator[Notice]:
    if kernel["recordsLost"]:
        yield Notice(
            f"kernel log: {count_noun(kernel['recordsLost'], 'record')} lost since the start; see"
            " journalctl -k"
        )
    if kernel["untrusted"]:
        yield Notice(
            f"kernel log: ignored {count_noun(kernel['untrusted'], 'fault-like line')}, written by"
            " user processes or about devices that this node does not have (see vitald events)"
        )


def _list_recovery(outline: schema.ApiRecovery | None) -> Iterator[Notice]:
    """What is requested of root, and what prevents it."""
    if outline is None:
        return
    request, brake = outline["request"], outline["brake"]
    if outline["mode"] == "automatic" and brake.startswith("none: "):
        yield Notice(f"recovery: no brake: {brake.removeprefix('none: ')}")
    if request is None:
        return
    what = "a reboot" if request["action"] == "reboot" else "a replacement"
    findings = join_first([f"#{number}" for number in request["findings"]], _MAX_NAMES)
    since = render.describe_time(request["since"])
    text = f"recovery: {what} is requested since {since}, for {findings}"
    decision = request["decision"]
    if decision is not None and decision["why"]:
        step = "waiting" if decision["step"] == "wait" else decision["step"]
        at, why = render.describe_time(decision["time"]), render.escape_text(decision["why"])
        text += f"; {step} at {at}: {why}"
    yield Notice(f"{text}: vitald recovery status")


def _list_publishers(status: schema.NodeStatus) -> Iterator[Notice]:
    """The sinks that do not get the node's state."""
    publishers = status.get("publishers")
    if publishers is None:
        return
    if publishers["silent"]:
        since = render.describe_time(publishers["reported"])
        yield Notice("vitald publish: ", "SILENT", f" since {since}: {_PUBLISHER_LOG}")
        return
    for sink in publishers["sinks"]:
        state = find_sink_state(sink, status["time"])
        if state == "up":
            continue
        detail = f", without {', '.join(sink['refused'])}" if sink["refused"] else ""
        if _is_late(sink["waitingSince"], status["time"]):
            detail += f" since {render.describe_time(sink['waitingSince'])}"
        if sink["error"]:
            detail += f": {render.escape_text(sink['error'])}"
        name = render.escape_text(sink["name"])
        yield Notice(f"publishing to {name}: ", state, f"{detail}: {_PUBLISHER_LOG}")


def find_sink_state(
    sink: schema.SinkReport, now: object
) -> Literal["up", "behind", "PARTLY", "DOWN"]:
    """Whether a sink gets the node's state. `now`: a time of the API."""
    if not sink["up"]:
        return "PARTLY" if sink["refused"] else "DOWN"
    return "behind" if _is_late(sink["waitingSince"], now) else "up"


def _is_late(waiting_since: object, now: object) -> bool:
    began, ended = render.parse_time(waiting_since), render.parse_time(now)
    if began is None or ended is None:
        return False
    return (ended - began).total_seconds() > _MAX_WAIT_S


def _list_configuration(configuration: schema.ApiConfiguration | None) -> Iterator[Notice]:
    """What differs between the file and what is in force."""
    if configuration is None:
        return
    if errors := configuration["errors"]:
        more = " (and others)" if len(errors) > 1 else ""
        yield Notice(
            "configuration: ",
            "REFUSED",
            f": {render.escape_text(errors[0])}{more}; the former one is in force, a start would"
            " fail: correct it, then vitald config reload",
        )
    for keys, what, command in (
        (configuration["needsReload"], "reload", "vitald config reload"),
        (configuration["needsRestart"], "restart", "systemctl restart vitald"),
    ):
        if keys:
            names = render.escape_text(join_first(keys, _MAX_NAMES))
            yield Notice(f"configuration: needs a {what}: {names}: {command}")
