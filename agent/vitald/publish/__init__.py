"""Publishes the node's state to other systems, in a process of its own."""
