"""
The parts of an archive of `vitald report`, in their order: small and important ones first, so that
the size limit takes the bulk.

Owns     the parts and their names, and that a part that fails does not stop the others.
Refuses  names from outside, control characters in its texts, and what may be a secret.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from vitald import __version__
from vitald.cli import CommandFailed, client, finding_text, status, why
from vitald.cli.client import NoAnswer
from vitald.cli.render import Json
from vitald.cli.report import machine
from vitald.cli.report.archive import README, Archive, ArchiveFull, PartWriter
from vitald.cli.report.event_pages import EventPages
from vitald.cli.report.ledger_history import LedgerHistory, open_raw_ledger
from vitald.cli.report.redact import Redactor, find_existing_socket, read_configuration
from vitald.collectors.kernel_log.settings import KernelLogSettings
from vitald.config.paths import Paths
from vitald.metrics.settings import MetricsSettings
from vitald.recovery.settings import RecoverySettings
from vitald.server import endpoints
from vitald.server.endpoint import MAX_PAGE, Answer, Get
from vitald.topology.pci_inventory import PciInventory

if TYPE_CHECKING:
    from vitald.server import schema

T = TypeVar("T")
_MAX_EVENTS_S = 120.0
_MAX_CHAINS, _MAX_OUTPUTS, _MAX_SUMMARISED = 100, 100, 50
_CHUNK = 1024 * 1024
# Only the daemon knows these.
_INVENTORY: dict[str, Get[object]] = {
    "inventory/components.json": endpoints.COMPONENTS,
    "inventory/gpus.json": endpoints.GPUS,
    "inventory/expected.json": endpoints.EXPECT,
    "diagnostics/checks.json": endpoints.DIAGNOSTICS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The options of the command. `since`: seconds since the epoch; `timeout`: seconds."""

    since: float
    config: Path
    socket: Path | None
    timeout: float
    logs: bool
    ledger: bool
    most: int  # bytes of the archive


class DaemonAnswers:
    """The answers of the daemon, until it has not answered once: then it is not queried again."""

    def __init__(self, socket: Path, timeout: float) -> None:
        """`timeout`: seconds for each answer."""
        self._arguments = argparse.Namespace(socket=socket, timeout=timeout)
        self.silent = ""

    def get(self, endpoint: Get[Answer]) -> Answer:
        """Raises CommandFailed."""
        if self.silent:
            raise CommandFailed(f"not queried: {self.silent}")
        try:
            return client.get(self._arguments, endpoint)
        except NoAnswer as error:
            self.silent = str(error)
            raise
        except RecursionError:
            target = endpoint.make_target({})
            raise CommandFailed(f"{target}: the answer is nested too deeply") from None


class SupportReport(PartWriter):
    """Writes the parts into an archive. `missing`: the parts that failed, and why."""

    def __init__(self, archive: Archive, wanted: ReportOptions, now: float) -> None:
        super().__init__(archive, Redactor())
        self._wanted = wanted
        self._now = now
        self._summary = io.StringIO()
        found = read_configuration(wanted.config, self._redactor)
        self._config = found.config
        if found.unreadable:
            self.note_missing("the configuration, and a search for its secrets", found.unreadable)
        self._shown_config = found.shown

    def write(self) -> int:
        """Writes all parts and ends the archive. Returns its size in bytes."""
        self.add_text("README.txt", README)
        with self.guard_part("config.json"):
            self.add_json("config.json", self._shown_config)
        place = self._wanted.socket or find_existing_socket(self._config)
        daemon = DaemonAnswers(place, self._wanted.timeout)
        history = self._add_status(daemon)
        try:
            if history is not None:
                self._add_findings(history)
            if not daemon.silent:
                self._add_inventory(daemon)
            with self.guard_part("summary.txt"):
                self.add_text("summary.txt", self._summary.getvalue())
            runs = self._list_runs(history)
            self._add_machine_state(runs)
            if history is not None:
                self._add_runs(history, runs)
                self._add_events(history)
        finally:
            if history is not None:
                history.close()
        if self._wanted.ledger:
            self._add_ledger()
        errors = "".join(f"{part}: {why}\n" for part, why in self.missing)
        return self._archive.close("errors.txt", self.encode_text(errors or "nothing is missing\n"))

    def _add_section(self, title: str, lines: Iterable[str]) -> None:
        """Adds a section to the summary, line by line: an error leaves the lines before it."""
        self._summary.write(f"\n=== {title}\n\n")
        for line in lines:
            self._summary.write(f"{line}\n")

    # --- the present, and where the past is

    def _add_status(self, daemon: DaemonAnswers) -> LedgerHistory | None:
        """The history; None if it cannot be read. Adds `status.json` and the head of the
        summary.
        """
        self.part = "status.json"
        answer: schema.NodeStatus | None = None
        silent = ""
        try:
            answer = daemon.get(endpoints.STATUS)
        except CommandFailed as error:
            silent = str(error)
            self.note_missing("all that only the daemon knows", silent)
        history: LedgerHistory | None = None
        with self.guard_part("the history"):
            history = LedgerHistory(self._config)
        with self.guard_part("status.json"):
            if answer is not None:
                self._add_present(answer)
            else:
                self._add_remembered(history, silent)
        return history

    def _add_present(self, answer: schema.NodeStatus) -> None:
        self.add_json("status.json", answer)
        self._write_head(
            f"vitald {answer['version']}, pid {answer['pid']}, answers; profile"
            f" {answer['profile']}, boot {answer['bootId']}"
        )
        with redirect_stdout(io.StringIO()) as printed:
            status.show_status(answer)
        self._add_section("vitald status", printed.getvalue().splitlines())

    def _add_remembered(self, history: LedgerHistory | None, silent: str) -> None:
        """`silent`: why the daemon does not answer."""
        remembered: Mapping[str, object] = {"status": "unknown"}
        state = f"vitald DOES NOT ANSWER ({silent})"
        with self.guard_part("what the ledger remembers"):
            remembered = history.read_status() if history is not None else remembered
        self.add_json("status.json", {**remembered, "error": silent})
        if history is None or "remembered" not in remembered:
            self._write_head(f"{state}, and its ledger cannot be read: errors.txt says why")
            return
        until = remembered["until"]
        self._write_head(f"{state}; this is what {history.origin} remembers, until {until}")
        flags = [flag for flag in ("rebootRequired", "replacementRequired") if remembered[flag]]
        self._add_section("as it was then", [", ".join([str(remembered["remembered"]), *flags])])

    def _write_head(self, state: str) -> None:
        made, since = (
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(moment))
            for moment in (self._now, self._wanted.since)
        )
        self._summary.write(
            f"vitald report of {os.uname().nodename}, made {made} UTC by uid {os.geteuid()} with"
            f" vitald {__version__}\n"
            "all times are UTC; a time without a date is of that day, an age is counted from then\n"
            f"what has ended is listed back to {since}\n{state}\n"
        )

    # --- the past of the node

    def _add_findings(self, history: LedgerHistory) -> None:
        since = self._wanted.since
        with self.guard_part("findings.json"):
            opened, cleared = history.list_open(), history.list_cleared(since)
            self._add_section(
                f"open findings: {len(opened) or 'none'}",
                _separate(
                    partial(finding_text.format_finding, full=True), opened[:_MAX_SUMMARISED]
                ),
            )
            self._add_section(
                f"findings that ended: {len(cleared) or 'none'}",
                _separate(finding_text.format_finding, cleared[:_MAX_SUMMARISED]),
            )
            if len(cleared) == MAX_PAGE:
                self.note_missing("findings.json", f"of those that ended it has {MAX_PAGE}")
            self.add_json("findings.json", {"open": opened, "cleared": cleared})
        with self.guard_part("incidents.json"):
            self.add_json("incidents.json", history.list_incidents(since))
        self._add_chains(history)
        with self.guard_part("inventory/devices.json"):
            self.add_json("inventory/devices.json", history.list_devices())

    def _add_chains(self, history: LedgerHistory) -> None:
        """How the open findings came to be; those before an error are kept."""
        chains: list[schema.Why] = []
        with self.guard_part("why.json"):
            opened = history.list_open()
            for finding in opened[:_MAX_CHAINS]:
                chains.append(history.explain_finding(finding["id"]))
            if len(opened) > _MAX_CHAINS:
                self.note_missing(
                    "why.json",
                    f"of {len(opened)} open findings the first {_MAX_CHAINS} are explained",
                )
        with self.guard_part("why.json"):
            if chains:
                self._add_section(
                    "how the open findings came to be",
                    _separate(why.format_chain, chains[:_MAX_SUMMARISED]),
                )
            self.add_json("why.json", chains)

    def _list_runs(self, history: LedgerHistory | None) -> list[schema.DiagnosticRun]:
        """The runs of the requested period, the newest first."""
        if history is not None:
            with self.guard_part("diagnostics/runs.json"):
                return history.list_runs(self._wanted.since)
        return []

    def _add_runs(self, history: LedgerHistory, listed: list[schema.DiagnosticRun]) -> None:
        """Adds all runs, and the output of the newest and of those that did not pass."""
        runs: list[dict[str, object]] = []
        kept = 0
        for number, run in enumerate(listed, start=1):
            name = f"diagnostics/run-{number:03}.txt"
            shown: dict[str, object] = {**run}
            if kept < _MAX_OUTPUTS // 2 or (kept < _MAX_OUTPUTS and run["outcome"] != "pass"):
                kept += 1
                with self.guard_part(name):
                    shown = {**history.read_run(run["id"])}
                    raw = str(shown.pop("raw"))
                    if raw:
                        self.add_text(name, raw if raw.endswith("\n") else f"{raw}\n")
                        shown["printed"] = name
            runs.append(shown)
        with self.guard_part("diagnostics/runs.json"):
            self.add_json("diagnostics/runs.json", runs)

    def _add_events(self, history: LedgerHistory) -> None:
        name = "events.jsonl"
        with self.guard_part(name):
            pages = EventPages(
                history.read_events(self._wanted.since),
                self.format_line,
                most=self._wanted.most,
                until=time.monotonic() + _MAX_EVENTS_S,
            )
            while True:
                try:
                    self._archive.stream_member(name, pages.size, pages)
                    break
                except ArchiveFull:
                    if not pages.drop_older_half():
                        raise
            if pages.cut:
                self.note_missing(name, pages.cut)

    # --- the state of the node

    def _add_inventory(self, daemon: DaemonAnswers) -> None:
        for name, endpoint in _INVENTORY.items():
            with self.guard_part(name):
                self.add_json(name, daemon.get(endpoint))

    def _add_machine_state(self, runs: list[schema.DiagnosticRun]) -> None:
        config = self._config
        with self.guard_part("inventory/pci.json"):
            self.add_json("inventory/pci.json", _list_pci_devices(config[Paths].sysfs))
        with self.guard_part("versions.json"):
            dcgm = next((run["dcgmVersion"] for run in runs if run["dcgmVersion"]), None)
            self.add_json(
                "versions.json",
                {**machine.list_versions(config[Paths].procfs, config[Paths].sysfs), "dcgm": dcgm},
            )
        with self.guard_part("service.txt"):
            self.add_text("service.txt", machine.read_service())
        with self.guard_part("recovery/decisions.jsonl"):
            decisions = config[RecoverySettings].state / "decisions.jsonl"
            if decisions.exists():  # most nodes have no automatic recovery
                lines = [
                    self.format_line(decision) for decision in machine.read_decisions(decisions)
                ]
                self._archive.add_member("recovery/decisions.jsonl", b"".join(lines))
        with self.guard_part("metrics.txt"):
            self.add_text(
                "metrics.txt",
                machine.scrape_metrics(config[MetricsSettings].listen, self._wanted.timeout),
            )
        if not self._wanted.logs:
            self.note_missing("vitald.log and kernel.log", "left out, as requested")
            return
        logs: tuple[tuple[str, Callable[[], str]], ...] = (
            ("vitald.log", machine.read_own_log),
            ("kernel.log", lambda: machine.read_kernel_messages(config[KernelLogSettings].path)),
        )
        for name, read in logs:
            with self.guard_part(name):
                self.add_text(name, self._redactor.redact_log(read()))

    def _add_ledger(self) -> None:
        with self.guard_part("ledger/"), open_raw_ledger(self._config[Paths].state) as files:
            for name, size, file in files:
                with self.guard_part(f"ledger/{name}"):
                    self._archive.stream_member(
                        f"ledger/{name}",
                        size,
                        _read_chunks(file, size),
                    )


def _read_chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The first `size` bytes of the file; fewer where it is shorter."""
    return iter(lambda: file.read(min(_CHUNK, size - file.tell())), b"")


def _list_pci_devices(sysfs: Path) -> list[Json]:
    inventory = PciInventory(sysfs)
    inventory.scan_bus()
    if inventory.error:
        raise OSError(inventory.error)
    return [
        {
            "pci": device.address,
            "kind": device.kind.value,
            "vendor": f"{device.vendor:04x}",
            "device": f"{device.device:04x}",
            "class": f"{device.pci_class:06x}",
            "driver": device.driver,
            "port": device.port,
            "slot": inventory.find_slot(device.address) or None,
        }
        for device in inventory.devices.values()
    ]


def _separate(lines: Callable[[T], Iterable[str]], items: Iterable[T]) -> Iterator[str]:
    for item in items:
        yield from lines(item)
        yield ""
