"""
Versions of software and firmware, and whether they are below their minimum.

Programs print theirs; they run rarely, and end with their deadline.

Source: Linux Documentation/ABI/stable/sysfs-class-infiniband (fw_ver); runc main.go
(printVersion); NVIDIA nvidia-container-toolkit cmd/nvidia-ctk; NVIDIA DCGM dcgmi --version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from vitald.catalog.versions import MinimumVersions, Version, parse_version
from vitald.collectors.collector import PolledDevice
from vitald.collectors.inventory.settings import OFF, PUBLISHED, SOFTWARE
from vitald.collectors.small_files import (
    RawReadings,
    describe_error,
    list_names,
    presentable,
    read_attribute,
    read_text,
)
from vitald.model import Component, ComponentKind
from vitald.programs import FOLDERS

_PROGRAMS = {"container_toolkit": "nvidia-ctk", "runc": "runc", "dcgm": "dcgmi"}
# "runc version 1.2.8", "NVIDIA Container Toolkit CLI version 1.19.1", "dcgmi  version: 4.5.3"
_PRINTED = re.compile(r"\bversion:?\s+(\S{1,64})")
_ANSWER_S = 5.0
_SERVES_S = 3600.0  # a version is read once an hour: software changes by updates
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": "/nonexistent"}
_MAX_ADAPTERS = 16  # listed
_OWN_BUILD = "a distribution's build: its number does not say what is fixed in it"


class NotRead(Exception):
    """The version cannot be read. The message, for operators, says why."""


class Software:
    """Each software with its version and minimum. `configured`: the minimums of the configuration;
    `published` those of the catalogue.
    """

    def __init__(
        self,
        sysfs: Path,
        procfs: Path,
        published: Mapping[str, MinimumVersions],
        configured: Mapping[str, str],
        folders: Sequence[str] = FOLDERS,
    ) -> None:
        self._adapters = sysfs / "class/infiniband"
        self._published = published
        self._configured = configured
        self._path = ":".join(folders)
        driver, kernel = sysfs / "module/nvidia/version", procfs / "sys/kernel/osrelease"
        self._readers: dict[str, Callable[[], dict[str, list[str]]]] = {
            "gpu_driver": lambda: {read_attribute(driver): []},
            "kernel": lambda: {read_text(kernel): []},
            "connectx_firmware": self._read_firmware,
            **{name: partial(self._run_program, program) for name, program in _PROGRAMS.items()},
        }
        self._is_present: dict[str, Callable[[], bool]] = {
            "gpu_driver": driver.exists,
            "kernel": kernel.exists,
            "connectx_firmware": lambda: any(self._list_adapters()),
            **{name: partial(self._is_installed, program) for name, program in _PROGRAMS.items()},
        }
        # By software: when it was read, on the monotonic clock, and what was read
        self._read: dict[str, tuple[float, RawReadings]] = {}

    def list_devices(self) -> Iterator[PolledDevice]:
        """What is present and has a minimum."""
        for name in SOFTWARE:
            if not self._has_minimum(name):
                continue
            try:
                is_present = self._is_present[name]()
            except OSError:
                continue
            if not is_present:
                continue
            component = Component(ComponentKind.NODE, name)
            yield PolledDevice(component, partial(self._read_software, name))

    def _has_minimum(self, name: str) -> bool:
        wanted = self._configured.get(name, PUBLISHED)
        return name in self._published if wanted == PUBLISHED else wanted != OFF

    def _read_software(self, name: str) -> RawReadings:
        now = time.monotonic()
        read_at, raw = self._read.get(name, (0.0, None))
        if raw is None or now - read_at >= _SERVES_S:
            raw = self._read_anew(name)
            self._read[name] = now, raw
        return RawReadings(
            values=dict(raw.values),
            missing=dict(raw.missing),
            display_name=_describe(name, raw),
            fields={"software": name},
        )

    def _read_anew(self, name: str) -> RawReadings:
        raw = RawReadings()
        try:
            versions = self._readers[name]()
        except OSError as error:
            raw.missing["version"] = describe_error(error)
            return raw
        except NotRead as error:
            raw.missing["version"] = str(error)
            return raw
        found = [self._judge_version(name, text, used) for text, used in versions.items()]
        # Of several, one that is below its minimum
        return max(found, key=lambda each: each.values.get("below_minimum", -1.0), default=raw)

    def _judge_version(self, name: str, text: str, adapters: Sequence[str]) -> RawReadings:
        raw = RawReadings(values={"version": presentable(text)})
        if adapters:
            raw.values["adapters"] = ", ".join(sorted(adapters)[:_MAX_ADAPTERS])
        wanted = self._configured.get(name, "")
        raw.values["configured"] = float(bool(wanted))
        try:
            version = parse_version(text)
        except ValueError as error:
            raw.missing["below_minimum"] = str(error)
            return raw
        if wanted in ("", PUBLISHED):
            self._compare_published(raw, name, version)
        else:
            raw.values["minimum_source"] = "configuration: [expect.versions]"
            _compare(raw, version, wanted, _has_family(self._published.get(name)))
        return raw

    def _compare_published(self, raw: RawReadings, name: str, version: Version) -> None:
        published = self._published.get(name)
        assert published is not None  # else it would not be listed
        if published.upstream_only and version.rest:
            raw.missing["below_minimum"] = _OWN_BUILD
        elif minimum := published.find_minimum(version):
            raw.values["minimum_source"] = f"{published.source} ({published.dated})"
            _compare(raw, version, minimum)
        else:
            raw.missing["below_minimum"] = "no minimum is published for this branch"

    def _read_firmware(self) -> dict[str, list[str]]:
        """The adapters by their firmware. Raises OSError."""
        found: dict[str, list[str]] = {}
        for name in self._list_adapters():
            found.setdefault(read_attribute(self._adapters / name / "fw_ver"), []).append(name)
        return found

    def _list_adapters(self) -> Iterator[str]:
        """ConnectX and BlueField adapters. Raises OSError."""
        for name in list_names(self._adapters):
            driver = os.path.realpath(self._adapters / name / "device/driver").rpartition("/")[2]
            if driver == "mlx5_core":
                yield name

    def _is_installed(self, program: str) -> bool:
        return shutil.which(program, path=self._path) is not None

    def _run_program(self, program: str) -> dict[str, list[str]]:
        """What `program --version` prints. Raises NotRead."""
        path = shutil.which(program, path=self._path)
        if path is None:
            raise NotRead(f"{program} is not installed")
        try:
            done = subprocess.run(
                [path, "--version"],
                env=_ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_ANSWER_S,
                check=False,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise NotRead(f"{program} did not answer within {_ANSWER_S:g} s") from None
        except OSError as error:
            raise NotRead(f"{program}: {error.strerror}") from None
        printed = _PRINTED.search(done.stdout)
        if printed is None:
            raise NotRead(f"{program} --version printed no version (exit code {done.returncode})")
        return {printed[1]: []}


def _describe(name: str, raw: RawReadings) -> str:
    """`runc 1.1.12, minimum 1.2.8`, as far as it is known."""
    words = f"{name.replace('_', ' ')} {raw.values.get('version', '')}".strip()
    minimum = raw.values.get("minimum")
    return f"{words}, minimum {minimum}" if minimum else words


def _has_family(published: MinimumVersions | None) -> bool:
    return published is not None and published.family


def _compare(raw: RawReadings, version: Version, minimum: str, family: bool = False) -> None:
    """`family`: the first number of the version is that of the device, and that of the minimum,
    too, where it has as many.
    """
    least = parse_version(minimum)
    if family:
        cut = 1 if len(least.numbers) >= len(version.numbers) else 0
        version = Version(version.numbers[1:], version.stage)
        least = Version(least.numbers[cut:], least.stage)
    raw.values["minimum"] = minimum
    raw.values["below_minimum"] = float(version < least)
