"""Linux hwmon: temperatures, fans and power supplies of the machine."""
