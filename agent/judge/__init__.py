"""What is wrong now, and what must be done. Pure: no I/O, no clocks, no asyncio; time comes in with the events.

`findings` is the life cycle of one problem, `verdict` the fold over all of them. Incidents (cause and consequence of
several findings) will be a third module between the two.
"""
