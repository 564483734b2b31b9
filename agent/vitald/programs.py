"""
Search path for programs whose place differs from site to site.

Owns     the folders and their order: what a site has put into /usr/local comes first.
Refuses  running anything: how a program is run and ended depends on who runs it.
"""

from __future__ import annotations

FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# For schedulers' programs, too: /opt/slurm is Slurm's place on AWS ParallelCluster and HyperPod.
PATH = ":".join((*FOLDERS, "/opt/slurm/bin"))
