"""
Querying Slurm, and draining and resuming a node: for Slurm's scripts and for root's recovery.

    settings   `[slurm]` of the configuration file
    scontrol   runs scontrol, and parses what it prints about nodes and jobs
    reasons    the reason that a node is given, and the record of the last ones
    owner      the node's owner: Slurm, vitald, or others
    drain      draining and resuming a node; HyperPod's actions
    slurmd     the environment that slurmd gives its scripts: node and job
    steps      the jobs that have a process on this node
    report     one line on standard error and in the system's log

The prolog imports these for every job: nothing here may import an expensive module, such as
subprocess.
"""
