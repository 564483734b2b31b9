"""Saved kernel logs: their forms, their clock, and the events that their lines report."""
