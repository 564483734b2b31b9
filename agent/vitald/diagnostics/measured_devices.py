"""
Which devices a measure was taken on, by what stays with a device that is moved and differs for one
that is put in its place: a limit that is learned must not outlive them.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from vitald.diagnostics.events import DeviceLookup
from vitald.model import Component, ComponentKind
from vitald.model.diagnostic import Run

_GPU = re.compile(r"GPU (\d{1,4})", re.ASCII)


def identify_device(places: DeviceLookup, device: str) -> str:
    """Of the device of a measure: of a GPU (`GPU 3`), or of all GPUs (empty). Empty if it is not
    known, or of other devices.
    """
    if not device:
        known = sorted(_identify(places, gpu) for gpu in places.list_gpus())
        if not known or not all(known):
            return ""
        return hashlib.blake2b("\n".join(known).encode(), digest_size=8).hexdigest()
    match = _GPU.fullmatch(device)
    gpu = places.find_gpu(int(match[1])) if match is not None else None
    return _identify(places, gpu) if gpu is not None else ""


def mark_devices(run: Run, places: DeviceLookup) -> Run:
    """The run with the identity of its devices in its measures."""
    if not run.report.measures:
        return run
    measures = tuple(
        replace(measure, identity=identify_device(places, measure.device))
        for measure in run.report.measures
    )
    return replace(run, report=replace(run.report, measures=measures))


def _identify(places: DeviceLookup, gpu: Component) -> str:
    """Empty where only its slot is known."""
    assert gpu.kind is ComponentKind.GPU
    identity = places.get_identity(gpu)
    return "" if identity == gpu.name else identity
