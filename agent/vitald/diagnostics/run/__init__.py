"""Running the programs of checks: start, supervision, end, and everything they started."""
