"""The API on the Unix socket: its endpoints, the types of its answers, and the daemon's routes."""
