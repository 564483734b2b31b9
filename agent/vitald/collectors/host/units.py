"""
State of required systemd units: those that are configured, and some that count only if enabled.

One call of systemctl reads all of them. Without systemd (in a container), or if it does not answer
in time, nothing is observed. A unit that is no longer required (disabled, or removed from the
configuration) is read for some time with `required` at 0, so that its findings are resolved.

Source: systemctl(1), org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from vitald.collectors.collector import PolledDevice
from vitald.collectors.raw_readings import RawReadings
from vitald.model.component import Component
from vitald.model.words import ComponentKind

_PROPERTIES = ("Id", "LoadState", "ActiveState", "SubState", "UnitFileState", "NRestarts", "Result")
_ANSWER_S = 5.0
_SERVES_S = 2.0  # an answer is valid for all units of one poll
# How long a unit that is no longer required is read: longer than any of its findings takes to be
# resolved.
_READ_AFTER_RELEASE_S = 3600.0
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}


class Unanswered(Exception):
    """systemd did not answer. The message, for operators, says why."""


def show_units(units: Sequence[str]) -> str:
    """The output of `systemctl show` for these units, a paragraph each, in their order. Raises
    Unanswered.
    """
    command = [
        "systemctl",
        "show",
        "--no-pager",
        f"--property={','.join(_PROPERTIES)}",
        "--",
        *units,
    ]
    try:
        done = subprocess.run(
            command,
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_S,
            check=False,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        raise Unanswered("there is no systemctl here") from None
    except subprocess.TimeoutExpired:
        raise Unanswered(f"systemctl did not answer within {_ANSWER_S:g} s") from None
    except OSError as error:
        raise Unanswered(f"systemctl: {error.strerror}") from None
    if done.returncode:
        errors = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Unanswered(f"systemctl: {errors[0]}")
    return done.stdout


class Units:
    """The configured units, and those that were required recently."""

    def __init__(self, units: Sequence[str], if_enabled: Sequence[str] = ()) -> None:
        """`if_enabled`: units that are required only if they are enabled."""
        self._configured = self._units = tuple(dict.fromkeys((*units, *if_enabled)))
        self._required = frozenset(units)
        self.show: Callable[[Sequence[str]], str] = show_units
        self._lock = threading.Lock()
        self._answer: list[dict[str, str]] | Unanswered = []
        self._asked = -_SERVES_S
        self._released: dict[str, float] = {}  # since when a unit is no longer required (monotonic)
        self._enabled: set[str] = set()  # optional units that were enabled at systemd's last answer
        self._has_answered = False  # since the daemon's start

    @property
    def watched(self) -> list[str]:
        """The units to read after a restart of the daemon, even if they are no longer required."""
        return sorted({*self._required, *self._enabled, *self._released})

    def restore_watched(self, watched: Sequence[str]) -> None:
        """`watched`: of an earlier start."""
        now = time.monotonic()
        self._released = {unit: now for unit in watched if unit not in self._required}
        self._units = tuple(dict.fromkeys((*self._configured, *watched)))

    def list_devices(self) -> Iterator[PolledDevice]:
        if not self._units:
            return  # without a name, systemctl shows the manager's own properties
        answer = self._ask_systemd()
        if not isinstance(answer, Unanswered):
            enabled = {
                unit
                for unit, properties in zip(self._units, answer)
                if properties.get("UnitFileState") in ("enabled", "enabled-runtime")
            }
            self._has_answered = True
            self._note_enabled(enabled.intersection(self._configured) - self._required)
        for number, unit in enumerate(self._units):
            must_run = unit in self._required or unit in self._enabled
            if must_run or unit in self._released or not self._has_answered:
                yield PolledDevice(
                    Component(ComponentKind.NODE, unit),
                    partial(self._read_unit, number, unit, must_run=must_run),
                )

    def _note_enabled(self, enabled: set[str]) -> None:
        now = time.monotonic()
        released = dict.fromkeys(self._enabled - enabled, now)
        kept = {
            unit: since
            for unit, since in self._released.items()
            if unit not in enabled and now - since < _READ_AFTER_RELEASE_S
        }
        self._released, self._enabled = {**released, **kept}, enabled

    def _read_unit(self, number: int, unit: str, *, must_run: bool) -> RawReadings:
        raw = RawReadings(display_name=unit, fields={"unit": unit})
        answer = self._ask_systemd()
        if isinstance(answer, Unanswered):
            raw.missing |= dict.fromkeys(("load_state", "active_state", "restarts"), str(answer))
            if must_run:  # otherwise it may not be required here
                raw.require("active_state")
            return raw
        properties = answer[number]
        raw.values["required"] = float(must_run)
        for name, key in (
            ("load_state", "LoadState"),
            ("active_state", "ActiveState"),
            ("sub_state", "SubState"),
            ("result", "Result"),
        ):
            if properties.get(key):
                raw.values[name] = properties[key]
            else:
                raw.missing[name] = f"systemd does not say {key} of it"
        if must_run:
            raw.require("active_state")
        restarts = properties.get("NRestarts", "")
        if restarts.isdigit():
            raw.values["restarts"] = float(restarts)
        else:
            raw.missing["restarts"] = "only services are restarted"
        return raw

    def _ask_systemd(self) -> list[dict[str, str]] | Unanswered:
        with self._lock:
            if time.monotonic() - self._asked >= _SERVES_S:
                try:
                    self._answer = self._parse_properties(self.show(self._units))
                except Unanswered as error:
                    self._answer = error
                self._asked = time.monotonic()
            return self._answer

    def _parse_properties(self, text: str) -> list[dict[str, str]]:
        """The properties of each unit, matched by their order, as a name may be an alias. Raises
        Unanswered.
        """
        units = [
            dict(line.split("=", 1) for line in part.splitlines() if "=" in line)
            for part in text.strip().split("\n\n")
        ]
        if len(units) != len(self._units):
            raise Unanswered(f"systemctl spoke of {len(units)} units, asked of {len(self._units)}")
        return units
