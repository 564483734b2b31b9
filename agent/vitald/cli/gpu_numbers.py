"""The numbers of GPUs, for people: N of /dev/nvidiaN, as in the label `gpu` of the metrics."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping

from vitald.cli import client

_NAME = re.compile(r"\bgpu/[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![\w.])(?! \(gpu)")
_UNTOUCHED = frozenset({"raw", "fields", "attributes"})  # what was read is shown as it was read


def add_gpu_numbers(arguments: argparse.Namespace, *answers: object) -> None:
    """Change `gpu/0000:5d:00.0` to `gpu/0000:5d:00.0 (gpu 3)` in answers of the daemon, which is
    asked for the numbers if one of them names a GPU.
    """
    if any(_NAME.search(json.dumps(answer)) for answer in answers):
        numbers = read_gpu_numbers(arguments)
        for answer in answers:
            number_gpus(answer, numbers)


def read_gpu_numbers(arguments: argparse.Namespace) -> dict[str, int]:
    """The number of each GPU that has one, by component name. Empty where the daemon cannot say:
    the numbers are an addition, and no reason for a command to fail.
    """
    try:
        answer = client.call_api(arguments, "/v1/gpus")
        return {
            gpu["component"]: gpu["identity"]["minor"]
            for gpu in answer.get("gpus", ())
            if isinstance(gpu["identity"].get("minor"), int)
        }
    except (client.NoAnswer, client.DaemonRefused):
        return {}


def number_gpus(answer: object, numbers: Mapping[str, int]) -> None:
    """Add the numbers in an answer, or a part of one."""

    def add_number(found: re.Match[str]) -> str:
        number = numbers.get(found[0])
        return found[0] if number is None else f"{found[0]} (gpu {number})"

    if isinstance(answer, dict):
        for key, value in answer.items():
            if key in _UNTOUCHED:
                continue
            if isinstance(value, str):
                answer[key] = _NAME.sub(add_number, value)
            else:
                number_gpus(value, numbers)
    elif isinstance(answer, list):
        for place, value in enumerate(answer):
            if isinstance(value, str):
                answer[place] = _NAME.sub(add_number, value)
            else:
                number_gpus(value, numbers)


def remove_gpu_number(component: str) -> str:
    """The name as options take it."""
    return component.partition(" ")[0]
