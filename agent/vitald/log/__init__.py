"""The log of vitald's services: its lines, where they go, and its settings."""
