"""
A simulated GPU node for tests and demonstrations: a libnvidia-ml.so.1 that answers from a text
file, and the PCI bus beside it.

    simulated_node     the node: what NVML answers, what happens to it
    profiles           the models of GPUs, from profiles.toml
    state_file         the state file and its keys: every change replaces it
    pci_tree           the PCI bus in sysfs
    simulated_library  compiles the library (nvml.c) on first use
"""
