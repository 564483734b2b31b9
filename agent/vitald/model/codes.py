"""
The codes of events that vitald evaluates by more than their entry in the catalogue.

Most of them are vitald's own observations of the node and its devices, or decisions of a person.
What such an event means beyond its entry is in `judge`.
"""

from __future__ import annotations

BOOT = "vitald/boot"
CLEARED = "vitald/cleared"  # a person closed a finding
REMEDY_BEGUN = "vitald/remedy_begun"
ACCEPTED = "vitald/accepted"
CLOCK_STEPPED = "vitald/clock_stepped"
SOURCE_FAILED = "vitald/source_failed"
TOO_MANY = "vitald/too_many"  # replaces the findings beyond the maximum number
IDENTITY = "device/identity"
REPLACED = "device/replaced"
JOB_DIED = "job/died"
DIAGNOSTIC_FAILED = "diagnostic/failed"
SITE_CHECK = "check"  # the kind of what a check of the site finds: `check/NAME`
