"""The event pipeline and its surroundings: node state, jobs, the writer in front of the ledger,
supervision.
"""
