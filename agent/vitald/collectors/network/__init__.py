"""Network adapters: EFA, InfiniBand, RoCE, and plain interfaces on PCI."""
