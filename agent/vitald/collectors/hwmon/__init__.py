"""Linux hwmon: temperatures and fans of the machine."""
