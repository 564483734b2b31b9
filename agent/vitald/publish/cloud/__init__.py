"""
Maintenance notices of cloud providers, read from the metadata service of the instance.

    notice     a notice, and what it means for the node
    metadata   requests to a metadata service, with limits
    aws, azure, gcp   what each provider says, and where
    monitor    reads the notices again and again, and hands them to the daemon
"""
