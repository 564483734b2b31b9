"""
What `ethtool -m` prints of a transceiver: `Module temperature : 40.01 degrees C / 104.02 ...`.

The module's own alarms count, not limits of ours. Copper cables have none.

Only SFF-8472 and SFF-8636 have a line that says whether there are alarms; CMIS just lists them. The
lane that ethtool names for an alarm of CMIS may be another one, as it tests the wrong bit.

Source: ethtool sfpdiag.c (SFF-8472), qsfp.c (SFF-8636), cmis.c (CMIS 5), sff-common.h: names of
values and flags, On and Off.
"""

from __future__ import annotations

import re

from vitald.collectors.small_files import RawReadings

_NUMBER = re.compile(r"(-?\d{1,6}(?:\.\d{1,6})?) (degrees C|V|mA|mW)\b.*")
_LANE = re.compile(r" *\(Chan(?:nel)? (\d{1,2})\)")
_VALUES = {  # name, without its lane -> reading, and the factor to its unit
    "Module temperature": ("temperature_celsius", 1.0),
    "Module voltage": ("supply_volts", 1.0),
    "Laser bias current": ("bias_amperes", 1e-3),
    "Laser tx bias current": ("bias_amperes", 1e-3),
    "Laser output power": ("transmitted_power_watts", 1e-3),
    "Transmit avg optical power": ("transmitted_power_watts", 1e-3),
    "Receiver signal average optical power": ("received_power_watts", 1e-3),
    "Receiver signal OMA": ("received_power_watts", 1e-3),
    "Rcvr signal avg optical power": ("received_power_watts", 1e-3),
}
_WHOLE_MODULE = ("temperature_celsius", "supply_volts")
_FLAG = re.compile(r".* (alarm|warning)\b.*")
_MAX_LINES = 512
_MAX_LISTED = 8


def read_transceiver(raw: RawReadings, output: str) -> None:
    """Readings of one transceiver. Nothing, with the reason, where it has no diagnostics."""
    table = dict(_split_line(line) for line in output.splitlines()[:_MAX_LINES] if ":" in line)
    lanes: dict[str, list[float]] = {}
    for name, text in table.items():
        reading, factor = _VALUES.get(_LANE.sub("", name), ("", 1.0))
        number = _NUMBER.fullmatch(text)
        if reading and number:
            lanes.setdefault(reading, []).append(float(number[1]) * factor)
    for reading, values in lanes.items():
        raw.values[reading] = values[0] if reading in _WHOLE_MODULE else tuple(values)
    flags = {name: text for name, text in table.items() if _is_flag(name, text)}
    if not flags:
        raw.missing["alarms"] = "the module has no alarms: a copper cable, or an old module"
        return
    on = [name for name, text in flags.items() if text == "On"]
    alarms = [re.sub(" +", " ", name) for name in on if " alarm" in name]
    raw.values["alarms"] = float(len(alarms))
    raw.values["warnings"] = float(sum(" warning" in name for name in on))
    raw.values["alarm_names"] = ", ".join(alarms[:_MAX_LISTED])


def _is_flag(name: str, text: str) -> bool:
    return text in ("On", "Off") and _FLAG.fullmatch(name) is not None


def _split_line(line: str) -> tuple[str, str]:
    name, _, text = line.partition(" : ")
    return name.strip(), text.strip()
