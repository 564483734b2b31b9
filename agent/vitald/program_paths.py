"""
Search paths for programs whose place differs from site to site.

Owns     the folders, and their order for each caller.
Refuses  running anything: how a program is run and ended depends on the caller.
"""

from __future__ import annotations

_SITE, _SYSTEM = ("/usr/local/sbin", "/usr/local/bin"), ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SLURM = "/opt/slurm/bin"  # on AWS ParallelCluster and HyperPod
FOLDERS = (*_SITE, *_SYSTEM)  # what a site has put into /usr/local comes first
PATH = ":".join((*FOLDERS, _SLURM))
# For programs that reboot a node: the system's directories precede /usr/local.
RECOVERY_PATH = ":".join((*_SYSTEM, *_SITE, _SLURM))
