"""What `vitald sensors` reads as root, and the file that it writes for the daemon."""
