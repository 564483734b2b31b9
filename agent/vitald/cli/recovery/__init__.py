"""`vitald recovery`: automatic reboot and replacement."""
