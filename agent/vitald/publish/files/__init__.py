"""Sinks that are files, which other programs on the node read: no network and no credentials."""
