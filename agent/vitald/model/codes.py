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
RESET = "device/reset"
DIAGNOSTIC_PASSED = "diagnostic/passed"
DIAGNOSTIC_FAILED = "diagnostic/failed"
UNFIT, FIT = "vitald/unfit", "vitald/fit"  # the node became so
SAVE_ANNOUNCED, SAVE_WITHDRAWN = "vitald/save_announced", "vitald/save_withdrawn"  # by a person
DRAINED, IN_SERVICE = "scheduler/drained", "scheduler/in_service"  # as its scheduler reports
# A diagnostic on the idle devices, for what notices showed
DIAGNOSTIC_REQUESTED = "vitald/diagnostic_requested"
# The node must pass a diagnostic before it is used again, and it did not pass
VALIDATION_PENDING, VALIDATION_FAILED = "validation/pending", "validation/failed"
