"""The event pipeline and what stands around it: state, jobs, the writer in front of the ledger,
supervision.
"""
