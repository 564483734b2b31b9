"""
flood: 100,000 ordinary records with 100 Xids among them, into the real kernel log.

At full speed the ring (some 1,100 records on a small machine) overtakes every reader, and what
counts is that nothing is lost silently: each Xid's sequence number is among the judged events, or
within a span that the daemon reported as lost. The floor is a bare reader of its own in place of
the daemon. The same daemon takes all the floods, so that what it keeps of one shows in the next.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence

from tests.bench import ring
from tests.bench.measure import (
    SETTLE_S,
    Helper,
    Json,
    Node,
    Usage,
    forget_peak,
    load,
    memory_mib,
    node,
    pid_of,
    rss_mib,
    scratch,
)

LINES, XIDS = 100_000, 100
PACE = 20_000  # records a second, in the paced form
_FORMS = (
    ("full_speed", None),
    ("paced", PACE),
    ("full_speed_again", None),
    ("paced_again", PACE),
    ("full_speed_last", None),
)
_BURST = 20
_CATCH_UP_S = 60.0


def run() -> Json:
    lines = ring.ordinary(LINES)
    domain = random.randrange(0x1000, 0xF000)
    with scratch() as folder, ring.unlimited() as out:
        floors = {pace: _bare(out, lines, pace, domain) for pace in (None, PACE)}
        with node(folder, kernel_log="kmsg") as running:
            time.sleep(SETTLE_S)
            before = rss_mib(pid_of(running))
            floods: Json = {
                name: {"daemon": _daemon(running, out, lines, pace, domain), "floor": floors[pace]}
                for name, pace in _FORMS
            }
            time.sleep(SETTLE_S)
            after = memory_mib(pid_of(running))
    return {
        "lines": LINES,
        "xids": XIDS,
        "pace_per_s": PACE,
        "rss_before_mib": before,
        **floods,
        "memory_at_end_mib": after,
        "load": load(),
    }


def _write(
    out: int, lines: Sequence[bytes], pace: int | None, domain: int
) -> tuple[float, list[int | None]]:
    """Seconds that the writing took, and the Xids' sequence numbers."""
    ring.lift()
    places = {
        place: number for number, place in enumerate(sorted(random.sample(range(len(lines)), XIDS)))
    }
    known: list[int | None] = []
    begun = time.monotonic()
    for number, line in enumerate(lines):
        if (device := places.get(number)) is not None:
            fault = ring.xid(
                79, f"{domain:04x}:{device:02x}:00", "GPU has fallen off the bus.", number
            )
            known.append(ring.write_known(out, fault))
        os.write(out, line)
        if pace is not None and number % _BURST == 0:
            time.sleep(max(0.0, begun + number / pace - time.monotonic()))
    return time.monotonic() - begun, known


def _bare(out: int, lines: Sequence[bytes], pace: int | None, domain: int) -> Json:
    with Helper(ring.bare_reader, "flood", f"PCI:{domain:04x}:".encode()) as bare:
        seconds, known = _write(out, lines, pace, domain)
        ring.finish(out, "flood")
        told = bare.ask()
    assert isinstance(told, dict)
    return {
        "xids_seen": len(told["seen"]),
        "records_read": told["read"],
        "records_lost": told["lost"],
        "write_s": round(seconds, 3),
        "cpu_s": round(told["cpu_s"], 3),
        "cpu_us_per_record_read": round(1e6 * told["cpu_s"] / told["read"], 2),
        "xids_dropped_by_kernel": known.count(None),
    }


def _daemon(running: Node, out: int, lines: Sequence[bytes], pace: int | None, domain: int) -> Json:
    pid = pid_of(running)
    time.sleep(SETTLE_S)
    _reach(running, out, domain)
    counters, before, since = _counters(running), rss_mib(pid), _newest(running)
    forget_peak(pid)
    usage = Usage.of(pid)
    seconds, known = _write(out, lines, pace, domain)
    written = time.monotonic()
    _reach(running, out, domain)
    caught_up = time.monotonic() - written
    used, memory = Usage.of(pid).since(usage), memory_mib(pid)
    read, lost, overruns = (after - was for after, was in zip(_counters(running), counters))
    time.sleep(SETTLE_S)
    judged, spans = _accounts(running, since)
    seqs = [seq for seq in known if seq is not None]
    seen = [seq for seq in seqs if seq in judged]
    within = [
        seq
        for seq in seqs
        if seq not in judged and any(first <= seq <= last for first, last in spans)
    ]
    return {
        "xids_judged": len(seen),
        "xids_in_lost_spans": len(within),
        "xids_accounted": len(seen) + len(within),
        "xids_unaccounted": sorted(set(seqs) - set(seen) - set(within)),
        "xids_dropped_by_kernel": known.count(None),
        "judged_twice": sum(judged.values()) - len(judged),
        "records_read": read,
        "records_lost": lost,
        "lost_by_its_events": sum(last - first + 1 for first, last in spans),
        "lost_events": len(spans),
        "overruns": overruns,
        "write_s": round(seconds, 3),
        "caught_up_after_s": round(caught_up, 3),
        "cpu_s": round(used.cpu_s, 3),
        "cpu_us_per_record_read": round(1e6 * used.cpu_s / max(1.0, read), 2),
        "rss_before_mib": before,
        "rss_max_mib": memory["rss_max"],
        "rss_after_mib": rss_mib(pid),
    }


def _reach(running: Node, out: int, domain: int) -> None:
    """Until the daemon has judged what was written last."""
    end = time.monotonic() + _CATCH_UP_S
    while (
        seq := ring.write_known(
            out,
            ring.xid(79, f"{domain:04x}:ff:1f", "GPU has fallen off the bus.", time.monotonic_ns()),
        )
    ) is None:
        if time.monotonic() > end:
            raise TimeoutError("the kernel drops what is written")
        ring.lift()
        time.sleep(0.1)

    def reached() -> bool:
        newest = running.events("&newest=true&code=xid/79")
        return any(str(event["identity"]).endswith(f":{seq}") for event in newest)

    while not reached():
        if time.monotonic() > end:
            raise TimeoutError(f"record {seq} was not judged within {_CATCH_UP_S:g} s")
        time.sleep(0.1)


def _counters(running: Node) -> tuple[float, float, float]:
    """Records read and lost, and overruns, by the daemon's own count."""
    read, lost, overruns = (
        running.metric(f"vitald_kernel_{name}_total") or 0.0
        for name in ("records_read", "records_lost", "overruns")
    )
    return read, lost, overruns


def _newest(running: Node) -> int:
    newest = running.get("/v1/events?newest=true&limit=1")["events"]
    return int(newest[0]["id"]) if newest else 0


def _accounts(running: Node, since: int) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Sequence number -> times judged, and the spans reported as lost, of the events after
    `since`.
    """
    judged: dict[int, int] = {}
    spans: list[tuple[int, int]] = []
    after: object = since
    while after is not None:
        page = running.get(f"/v1/events?limit=1000&since={after}")
        for event in page["events"]:
            if event["code"] == "xid/79":
                seq = int(str(event["identity"]).rpartition(":")[2])
                judged[seq] = judged.get(seq, 0) + 1
            elif event["code"] == "vitald/records_lost":
                spans.append((int(event["fields"]["first_seq"]), int(event["fields"]["last_seq"])))
        after = page["next"]
    return judged, spans
