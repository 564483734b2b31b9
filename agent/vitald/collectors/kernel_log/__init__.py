"""The kernel log: its record grammar, its readers, and what its lines report."""
