"""
One port of an RDMA device: link state, rate and counters.

Which ports should be up, and which error rates are too high, is decided elsewhere. Only useful
counters are read: each file of an mlx5 port is a request to its firmware.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from vitald import small_files
from vitald.collectors.raw_readings import Files, RawReadings

_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec(?: \((\d+)X)?")

# Counters of the InfiniBand standard, and the maximum at which each stops counting.
_MAX_COUNTS = {
    "link_downed": 255,
    "link_error_recovery": 255,
    "symbol_error": 65535,
    "port_rcv_errors": 65535,
    "port_xmit_discards": 65535,
    "local_link_integrity_errors": 15,
    "excessive_buffer_overrun_errors": 15,
}
_STANDARD_COUNTERS = tuple(_MAX_COUNTS)
# mlx5: infiniband/hw/mlx5/counters.c; the last one is bnxt_re's
# (infiniband/hw/bnxt_re/hw_counters.c).
_DRIVER_COUNTERS = (
    "local_ack_timeout_err",
    "roce_slow_restart",
    "packet_seq_err",
    "rx_icrc_encapsulated",
    "unrecoverable_err",
)
EFA_COUNTERS = (
    *("rx_drops", "rdma_read_wr_err", "rdma_write_wr_err", "retrans_pkts", "retrans_bytes"),
    *("retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"),
)
# There is no such counter, this process may not read it, or the device does not have it: no fault.
_NOT_OFFERED = (errno.ENOENT, errno.EINVAL, errno.EACCES, errno.EPERM, errno.EOPNOTSUPP)


class Link(Enum):
    """A port's state and its physical state, combined."""

    UP = "up"
    RETRAINING = "retraining"
    # The cable is fine, but the subnet manager has not activated the port.
    WAITING = "waiting"
    DOWN = "down"
    DISABLED = "disabled"  # by an administrator
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Port:
    """A port as it was last read. `rate` in bits per second; `rate` and `lanes` are 0 unless the
    link is up.
    """

    link: Link = Link.UNKNOWN
    rate: float = 0.0
    lanes: float = 0.0


class Carrier(Enum):
    """Carrier of a network interface."""

    UP = "up"
    LOST = "lost"  # turned on, without a link
    OFF = "off"  # turned off by an administrator
    UNKNOWN = "unknown"


def classify_link(
    state: int | None, physical: int | None, *, ethernet: bool, carrier: Carrier
) -> Link:
    """Combines the numbers in `state` and `phys_state`, and the carrier of the port's interface if
    it has one.

    Ethernet drivers (mlx5, bnxt) report every port without a link as `Disabled`, so only the
    interface shows whether it was turned off.
    """
    if physical == 6:
        return Link.RETRAINING
    if state in (4, 5):
        if physical == 5:
            return Link.UP
        return Link.DOWN if physical in (1, 2, 3, 4, 7) else Link.UNKNOWN
    if state in (2, 3):
        return Link.WAITING
    if state != 1:
        return Link.UNKNOWN
    if ethernet and carrier in (Carrier.OFF, Carrier.LOST):
        return Link.DISABLED if carrier is Carrier.OFF else Link.DOWN
    return Link.DISABLED if physical == 3 else Link.DOWN


def parse_number(text: str | None) -> int | None:
    """The number before the colon: 4 of `4: ACTIVE`. None if there is none."""
    head = (text or "").partition(":")[0].strip()
    return int(head) if head.isascii() and head.isdigit() else None


def parse_rate(text: str | None) -> tuple[float, float]:
    """Bits per second and lanes, of `400 Gb/sec (4X NDR)`; 0 if missing."""
    found = _RATE.match(text or "")
    return (float(found[1]) * 1e9, float(found[2] or 0)) if found else (0.0, 0.0)


@dataclass(slots=True)
class PortCounters:
    """Reads the counters of one adapter in succession: EFA's driver asks its device once for all
    that is read within 10 ms.

    `failed`: in this read, the number of counters that were readable before and now fail: a sign of
    a device that no longer answers.
    """

    files: Files
    failed: int = 0
    answered: bool = False  # in this read
    _readable: set[str] = field(default_factory=set)  # paths that were ever readable
    _at_max: set[str] = field(default_factory=set)  # paths

    def begin_read(self) -> None:
        self.failed, self.answered = 0, False

    def report_unreadable(self, raw: RawReadings) -> bool:
        """Reports how many counters became unreadable. False if there are no counters at all."""
        if not self.failed and not self.answered:
            return False
        raw.values["counters_unreadable"] = float(self.failed)
        return True

    def read_port(self, raw: RawReadings, folder: str) -> None:
        """The counters of an InfiniBand or RoCE port that its driver offers."""
        self.read_counters(raw, f"{folder}/counters", _STANDARD_COUNTERS)
        self.read_counters(raw, f"{folder}/hw_counters", _DRIVER_COUNTERS)

    def read_counters(
        self, raw: RawReadings, folder: str, wanted: Iterable[str], *, before: bool = False
    ) -> None:
        """`before`: they were readable before, if not by this process."""
        offered = set(small_files.list_names(folder))
        for name in wanted:
            if name in offered:
                self._read_counter(raw, name, f"{folder}/{name}", before)

    def _read_counter(self, raw: RawReadings, name: str, path: str, before: bool) -> None:
        if path in self.files.refused:
            raw.missing[name] = small_files.describe_error(OSError(errno.EINVAL, ""))
            return
        try:
            text = small_files.read_attribute(path)
        except OSError as error:
            if error.errno == errno.EINVAL:
                self.files.refused.add(path)
            if error.errno not in _NOT_OFFERED and (before or path in self._readable):
                self.failed += 1
            raw.missing[name] = small_files.describe_error(error)
            return
        try:
            value = small_files.parse_whole_number(text)
        except (ValueError, OverflowError):
            # Such as `N/A (no PMA)`.
            raw.missing[name] = f"reads {text[:40]!r}, which is no number"
            return
        self.answered = True
        self._readable.add(path)
        if value != _MAX_COUNTS.get(name):
            self._at_max.discard(path)
        elif path in self._at_max:
            raw.missing[name] = f"stands at {value:g}, the most that it can count"
            return
        else:
            self._at_max.add(path)  # this first time, the value is exact
        raw.values[name] = value
