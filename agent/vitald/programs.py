"""
Search paths for programs whose place differs from site to site.

Owns     the folders, and their order for each caller.
Refuses  running anything: how a program is run and ended depends on the caller.
"""

from __future__ import annotations

_SITE, _SYSTEM = ("/usr/local/sbin", "/usr/local/bin"), ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SLURM = "/opt/slurm/bin"  # Slurm's place on AWS ParallelCluster and HyperPod
FOLDERS = (*_SITE, *_SYSTEM)  # what a site has put into /usr/local comes first
PATH = ":".join((*FOLDERS, _SLURM))
# For what reboots a node: nothing in /usr/local stands in for a program of the system's.
RECOVERY_PATH = ":".join((*_SYSTEM, *_SITE, _SLURM))
