"""
What is asked of Slurm, and how a node is taken out of its service: for Slurm's scripts and for
root's recovery.

    settings   `[slurm]` of the configuration file, as the scripts read it
    scontrol   running scontrol, and what it prints about nodes and jobs
    reasons    the reason that a node gets, and whether the one that it has is ours
    drain      taking a node out of service, and giving it back; HyperPod's actions
    slurmd     what slurmd tells its scripts of the node and the job
    steps      the jobs that have a process on this node
    report     one line on standard error and in the system's log

The prolog imports these at every job: nothing here may import what costs much, such as dataclasses
or subprocess.
"""
