"""The event pipeline and its surroundings: node state, components, jobs, the writer in front of the
ledger, supervision.
"""
