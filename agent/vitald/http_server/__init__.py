"""The HTTP server behind the socket, the Prometheus endpoint and the status page."""
