"""Settings of the Neuron collector."""

from __future__ import annotations

from dataclasses import dataclass

from vitald.checking import read_flag
from vitald.config.readers import read_poll_period
from vitald.config.section import Section, duration, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronSettings:
    """AWS Trainium and Inferentia, read from the driver's sysfs tree."""

    enabled: bool = setting(
        True, read_flag, "Poll Neuron devices where PCI or the driver shows any."
    )
    every_s: float = duration(
        "30s", "How often to read counters and states of each device.", read_poll_period
    )
    deadline_s: float = duration(
        "10s",
        "A read of one device that takes longer counts as hung: it opens a finding, and the"
        " device is unknown.",
        read_poll_period,
    )


SECTION = Section(name="neuron", settings=NeuronSettings, order=30)
