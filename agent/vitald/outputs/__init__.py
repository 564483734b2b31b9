"""Who is told: the socket API, the Prometheus endpoint, systemd. Outputs read the board; they never judge."""
