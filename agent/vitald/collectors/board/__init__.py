"""What the BMC and transceivers report, which root's sensor reader passes on."""
