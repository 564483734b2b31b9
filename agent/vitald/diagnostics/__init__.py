"""
Diagnostics: programs that test the hardware, when they help and never when they hurt.

A run is asked for by the schedule, a finding, or a person; its result comes in as any other
source's: as events.
"""
