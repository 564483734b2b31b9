"""Decides what is wrong with the node, and which action it requires.

Pure: no I/O, no clocks, no asyncio; time comes in with the events. `engine` passes one event at a
time through its table of stages, and describes terms and rules at its top. `verdict` combines all
open findings into the node's status.
"""
