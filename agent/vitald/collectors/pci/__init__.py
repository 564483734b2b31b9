"""PCI functions: presence, links and error counters."""
