"""PCI functions: which there are, and how their links and error counters are."""
