"""
The node's map: which devices and disks it has, and where they are. Collectors, the kernel log's
interpretation and diagnostics use it. Nothing here judges or reports.
"""
