"""
A simulated GPU node for tests and demonstrations: a libnvidia-ml.so.1 that answers from a text
file, and the PCI bus beside it.

    node         the node: what NVML answers, what happens to it
    profiles     the models of GPUs, from profiles.toml
    keys         the keys of the state file
    state_file   the state file: every change replaces it
    pci_tree     the PCI bus in sysfs
    build        compiles the library (nvml.c) on first use
"""
