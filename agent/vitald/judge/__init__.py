"""What is wrong now, and what must be done. Pure: no I/O, no clocks, no asyncio; time comes in with
the events.

`judge` folds one event in. It owns `incidents` (cause and consequence), `findings` (the life of one
problem), `history` (a device's record) and `devices` (who is in which slot). `verdict` is the fold
over all open findings.
"""
