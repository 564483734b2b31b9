"""The machine around the accelerators: memory, processors, disks, processes, clock and services."""
