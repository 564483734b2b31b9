"""
The BMC and transceivers, from the file that root's sensor reader writes (`vitald-sensors.timer`).

Without the file there is nothing to read. With one that is too old the node is unknown, as the
reader was enabled and does not run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vitald.collectors.board.bmc_log import EventLog, find_gap
from vitald.collectors.board.bmc_sensors import read_sensors
from vitald.collectors.board.readings import READINGS
from vitald.collectors.board.settings import SECTION, BoardSettings
from vitald.collectors.board.transceiver import read_transceiver
from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.root_file import (
    RELATIVE_PATH,
    RootFile,
    RootFileError,
    read_root_file,
)
from vitald.collectors.small_files import Files, RawReadings
from vitald.model import Component, ComponentKind, Readings

NAME = "board"
BMC = Component(ComponentKind.NODE, "bmc")
_LOG = "log"
_NOT_ENABLED = "vitald-sensors.timer is not enabled, or has not run since the boot"
_NOTHING = "this node has neither a BMC nor a transceiver"


class Board:
    """The BMC, and the transceivers that `ethtool -m` can read."""

    name = NAME

    def __init__(self, root: Path, sysfs: Path, max_age_s: float) -> None:
        """`root`: the folder that has /run."""
        self.memory: dict[str, Any] = {}
        self._path = root / RELATIVE_PATH
        self._sysfs = sysfs
        self._max_age_s = max_age_s
        self._log: EventLog | None = None
        self._log_lock = threading.Lock()  # reads run in threads

    def find_devices(self) -> Found:
        try:
            file = read_root_file(self._path)
        except RootFileError as error:
            return Found(trouble=str(error))
        if file is None:
            return Found(absent=_NOT_ENABLED)
        if file.age_s > self._max_age_s:
            return Found(
                trouble=f"{self._path} is {file.age_s / 60:.0f} minutes old: vitald-sensors.service"
                " does not run (to stop using it, disable its timer and remove the file)"
            )
        devices = [
            PolledDevice(
                Component(ComponentKind.NIC, f"transceiver-{name}"),
                partial(self._read_transceiver, name, answer.output),
            )
            for name, answer in file.transceivers.items()
            if not answer.trouble
        ]
        if not (file.bmc_sensors.absent and file.bmc_log.absent):
            devices.append(PolledDevice(BMC, partial(self._read_bmc, file)))
        return Found(devices, absent="" if devices else _NOTHING)

    def combine_readings(
        self,
        read: Mapping[Component, Readings],  # noqa: ARG002
        found: Found,  # noqa: ARG002
    ) -> Iterable[Readings]:
        """No further readings: remembers the log's entries."""
        with self._log_lock:
            if self._log is not None:
                self.memory = {_LOG: self._log.memory}
        return ()

    def _read_bmc(self, file: RootFile) -> RawReadings:
        raw = RawReadings(display_name="BMC")
        log_trouble = file.bmc_log.trouble or find_gap(file.bmc_log.output)
        troubles = [trouble for trouble in (file.bmc_sensors.trouble, log_trouble) if trouble]
        raw.values["silent"] = float(bool(troubles))
        raw.values["silent_reason"] = "; ".join(troubles)
        if file.bmc_sensors.trouble:
            raw.missing["critical_sensors"] = file.bmc_sensors.trouble
        else:
            read_sensors(raw, file.bmc_sensors.output)
        self._read_log(raw, file.bmc_log.output, log_trouble or file.bmc_log.absent)
        return raw

    def _read_log(self, raw: RawReadings, output: str, problem: str) -> None:
        if problem:
            raw.missing["log_processor_errors"] = problem
            return
        with self._log_lock:
            if self._log is None:
                self._log = self._restore_log()
            self._log.add_entries(output)
            self._log.add_readings(raw)

    def _restore_log(self) -> EventLog:
        try:
            return EventLog(self.memory.get(_LOG, {}))
        except (TypeError, ValueError, AttributeError):  # another version wrote it
            return EventLog({})

    def _read_transceiver(self, name: str, output: str) -> RawReadings:
        raw = RawReadings(display_name=f"transceiver of {name}", fields={"interface": name})
        read_transceiver(raw, output)
        Files().read_number(raw, "link_up", self._sysfs / "class/net" / name / "carrier")
        return raw


def _build_board(context: CollectorContext) -> Board:
    settings = context.settings[BoardSettings]
    return Board(context.paths.root, context.paths.sysfs, settings.max_age_s)


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    catalog_kinds=(NAME,),
    readings=READINGS,
    build_collector=_build_board,
)
