"""
The data model: observations, findings, incidents, actions and the verdict.

    words       the closed sets of values: actions, statuses, kinds, outcomes
    component   components, the device in each, the marks of its history
    event       single facts with their source
    source      the interface of a source, and its readings
    finding     findings and incidents, their changes, the verdict
    diagnostic  runs of diagnostics and their results
    reasons     the stable word for each code

Owns     the types that all other modules use, and the order of actions.
Refuses  I/O, clocks, and the meaning of codes, which is in the catalogue.

All times are seconds since the epoch (UTC), as floats. PCI addresses are written as the kernel's
sysfs writes them: lower-case `dddd:bb:dd.f`, the domain at least four digits.
"""
