"""What the program prints, as values. A document that is not whole is none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from vitald.collectors.small_files import presentable
from vitald.diagnostics.run import tool

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_TESTING = re.compile(r"^testing (\S{1,40})$", re.MULTILINE)
_MAX_GPUS = 64


@dataclass(frozen=True, slots=True)
class Result:
    """What batches of one GPU left. `different_bytes`: from the first result of equal GPUs."""

    digest: str
    count: int
    different_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResult:
    """One GPU. `number`: as CUDA counts those that it sees; `rates`: operations a second, by
    phase.
    """

    number: int
    address: str
    name: str = ""
    uuid: str = ""
    architecture: str = ""
    processors: int = 0
    results: tuple[Result, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def kind(self) -> tuple[str, str, int]:
        """Equal GPUs have an equal one."""
        return self.name, self.architecture, self.processors

    @property
    def is_instance(self) -> bool:
        """True for a MIG instance, which CUDA names so."""
        return " MIG " in f"{self.name} "


@dataclass(frozen=True, slots=True)
class Document:
    """What one run found. `error`: why it tested nothing."""

    gpus: tuple[GpuResult, ...] = ()
    error: str = ""
    driver: str = ""
    library: str = ""


def read_document(text: str) -> Document | None:
    """None if the text has no whole document."""
    found = tool.find_document(text)
    gpus = found.get("gpus") if found is not None else None
    if found is None or not isinstance(gpus, list):
        return None
    try:
        return Document(
            gpus=tuple(_read_gpu(number, gpu) for number, gpu in enumerate(gpus[:_MAX_GPUS])),
            error=_read_text(found, "error"),
            driver=_read_text(found, "driver"),
            library=_read_text(found, "library"),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def find_last_tested(text: str) -> str:
    """The address of the GPU that was tested last, `all`, or "" if none was."""
    tested = _TESTING.findall(text)
    return presentable(tested[-1]) if tested else ""


def _read_gpu(number: int, gpu: Mapping[str, object]) -> GpuResult:
    address, results, rates = _read_text(gpu, "address"), gpu["results"], gpu["rates"]
    if not _ADDRESS.fullmatch(address) or not isinstance(results, list):
        raise ValueError(address)
    if not isinstance(rates, dict):
        raise TypeError(rates)
    figures = {str(phase): tool.parse_number(rate) for phase, rate in rates.items()}
    return GpuResult(
        number=number,
        address=address[-12:],
        name=_read_text(gpu, "name"),
        uuid=_read_text(gpu, "uuid"),
        architecture=_read_text(gpu, "architecture"),
        processors=int(str(gpu["processors"])),
        results=tuple(
            Result(str(result["digest"]), int(result["count"]), int(result["different_bytes"]))
            for result in results
        ),
        rates={phase: rate for phase, rate in figures.items() if rate is not None},
        error=_read_text(gpu, "error"),
    )


def _read_text(table: Mapping[str, object], key: str) -> str:
    value = table.get(key)
    return "" if value is None else presentable(str(value))
