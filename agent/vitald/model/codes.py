"""
The codes of events that vitald judges by more than their entry in the catalogue.

Facts about the node, its devices and its people, most of them vitald's own observations. What such
an event means beside its entry is in `judge`; how it is shown, and what it asks for, is in the
catalogue like everything else.
"""

from __future__ import annotations

BOOT = "vitald/boot"
CLEARED = "vitald/cleared"  # a person closed a finding
REMEDY_BEGUN = "vitald/remedy_begun"
ACCEPTED = "vitald/accepted"
CLOCK_STEPPED = "vitald/clock_stepped"
SOURCE_FAILED = "vitald/source_failed"
TOO_MANY = "vitald/too_many"  # stands for the findings for which there is no room
IDENTITY = "device/identity"
REPLACED = "device/replaced"
JOB_DIED = "job/died"
DIAGNOSTIC_FAILED = "diagnostic/failed"
