"""
Keys and values of the state file (README.md in this folder): which keys there are, and how a value
is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from vitald import tomlfile
from vitald.simulator import build

_README = Path(__file__).with_name("README.md")
_INJECTIONS = ("ret", "after", "delay_us", "hang", "crash")
_GLOBAL_KEY = re.compile(
    r"driver\.(?:version|nvml|cuda|epoch)|count"
    r"|abi\.(?:unrepairable|fabric_max|platform_max|any_set)"
    r"|(?:ret|after|hang|delay_us|crash)\.(?:nvml\w+|\*)"
)
_GPU_KEY = re.compile(
    r"name|uuid|serial|part|vbios|inforom|busid|module|minor|board_id|arch|brand|cc|pci_device_id"
    r"|temp_c|threshold\.\d+|margin_c|power_mw|limit_mw|limit_default_mw|energy_mj|pstate"
    r"|(?:max_)?clock\.\d+|throttle|utilization|encoder|decoder|memory|persistence|ecc_mode"
    r"|ecc\.(?:cor|unc)\.(?:vol|agg)\.(?:total|l1|l2|dram|reg|tex|shm|cbu|sram)"
    r"|sram|privileged|remap|histogram|pages\.(?:sbe|dbe|pending)|repair|unrepairable|mig_mode"
    r"|mig_max|mig\.\d+|gpm\.(?:supported|\d+(?:\.\d+)?)"
    r"|pcie\.(?:gen|gen_max|gen_gpu_max|width|width_max|replay)|fi\.\d+\.\d+"
    r"|nvlink\.\d+\.(?:state|version|remote|err\.[0-3])"
    r"|fabric|platform|procs|events_mask|lost|absent|excluded|lookup_ret|epoch"
    r"|(?:ret|after|hang|delay_us|crash)\.(?:nvml\w+|\*)"
)
_RATE = re.compile(r"\d+(?:\.\d+)?")


@cache
def list_exported_calls() -> frozenset[str]:
    """Every call that the library's source names. An injection for another one would silently test
    nothing.
    """
    return frozenset(re.findall(r"\bnvml[A-Z]\w+", build.SOURCE.read_text(encoding="utf-8")))


def check_gpu_key(key: str) -> str:
    """`key`, if it is one of a GPU. Raises ValueError."""
    if not _GPU_KEY.fullmatch(key.removeprefix("rate.")):
        raise ValueError(f"{key!r} is not a key of a GPU: see {_README}")
    _check_call(key, key.removeprefix("rate."))
    return key


def check_global_key(key: str) -> str:
    """`key`, if it is one that belongs to no GPU. Raises ValueError."""
    if not _GLOBAL_KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not a key without a GPU: see {_README}")
    _check_call(key, key)
    return key


def _check_call(key: str, bare: str) -> None:
    """Raises ValueError for an injection into a call that the library does not export."""
    kind, _, function = bare.partition(".")
    if kind not in _INJECTIONS or function == "*" or function in list_exported_calls():
        return
    suggestion = tomlfile.suggest_word(function, list_exported_calls())
    raise ValueError(f"{key!r}: the simulated library has no {function}{suggestion}")


def format_gpu_values(values: Mapping[str, object]) -> dict[str, str | None]:
    """Keys of a GPU with their text; None for a key that is to be removed. Raises ValueError."""
    return {check_gpu_key(key): _format_optional(key, value) for key, value in values.items()}


def format_global_values(values: Mapping[str, object]) -> dict[str, str | None]:
    """As `format_gpu_values`, for keys that belong to no GPU. Raises ValueError."""
    return {check_global_key(key): _format_optional(key, value) for key, value in values.items()}


def _format_optional(key: str, value: object) -> str | None:
    return None if value is None else format_value(key, value)


def format_value(key: str, value: object) -> str:
    """A value as the file has it, on one line. Raises ValueError."""
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if "\n" in text or "\0" in text:
        raise ValueError(f"{key}: a value is one line")
    if key.startswith("rate.") and not _RATE.fullmatch(text):
        raise ValueError(f"{key}: {text!r} is not a number per second")
    return text
