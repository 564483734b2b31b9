"""A GPU node without GPUs: a libnvidia-ml.so.1 that answers from a text file, and the PCI bus
beside it. For tests and demonstrations.
"""
