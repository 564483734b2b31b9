"""How the node is set up where that costs performance: processors, PCI, memory, kernel."""
