"""
Diagnostics: programs that test the hardware, run only when they do not disturb a job.

A run is requested by the schedule, a finding or a person. Its result enters the pipeline as
events, like those of any other source.
"""
