"""
Querying Slurm, and draining and resuming a node: for Slurm's scripts and for root's recovery.

    settings      `[slurm]` of the configuration file
    scontrol      runs scontrol, and parses what it prints about nodes and jobs
    owner         the node's owner (Slurm, vitald, or others), and the reason that a node is given
    drain         draining and resuming a node; HyperPod's actions
    slurmd        the environment that slurmd gives its scripts, and the steps of jobs on this node
    unknown_jobs  how many jobs began while nothing was known of the node
    report        one line on standard error and in the system's log

The prolog imports these for every job: nothing here may import an expensive module, such as
subprocess.
"""
