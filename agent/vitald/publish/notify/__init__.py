"""Notifications: what changed, sent to each receiver that the configuration names."""
