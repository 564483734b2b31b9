"""Whether the configuration file could be read, and when, for the metrics."""

from __future__ import annotations

import time


class ConfigHealth:
    """The last reading of the file, at the start or on SIGHUP. `settings_hash` and `read_at`
    (seconds since the epoch) are those of the last one without a mistake.
    """

    def __init__(self, settings_hash: int) -> None:
        self.settings_hash = settings_hash
        self.read_at = time.time()
        self.is_good = True

    def note_success(self, settings_hash: int) -> None:
        self.settings_hash = settings_hash
        self.read_at = time.time()
        self.is_good = True

    def note_failure(self) -> None:
        self.is_good = False
