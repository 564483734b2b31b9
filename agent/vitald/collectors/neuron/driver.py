"""The Neuron driver's module: whether it is loaded, being loaded or unloaded, and which it is."""

from __future__ import annotations

from pathlib import Path

from vitald.collectors import small_files

_MODULE = "module/neuron"
# Drivers before 2.26.5 can crash the kernel when their files are read meanwhile
_MOVING = ("coming", "going")


class NeuronDriver:
    """The kernel module, as last read. `version` is empty if it is unknown.

    `load_id` is another one each time that the driver is loaded; empty while it is not.
    """

    def __init__(self, sysfs: Path) -> None:
        self._folder = sysfs / _MODULE
        self.version = ""
        self.load_id = ""
        self.is_moving = False  # it is being loaded or unloaded

    @property
    def epoch(self) -> str:
        """Changes when another driver, or the same one again, was loaded."""
        return f"{self.version} {self.load_id}".strip()

    def read_state(self) -> str:
        """The module's state: live, coming, going; empty if it is not loaded."""
        try:
            return small_files.read_text(self._folder / "initstate")
        except OSError:
            return ""

    def update_moving(self) -> bool:
        """Whether it is being loaded or unloaded now."""
        self.is_moving = self.read_state() in _MOVING
        return self.is_moving

    def detect_change(self) -> bool:
        """Whether the driver was loaded, again or in another version, since the last call."""
        before = (self.version, self.load_id)
        try:
            # Sysfs recreates the folder, with another inode number.
            self.load_id = f"{self._folder.stat().st_ino}"
        except OSError:
            self.load_id = ""
        try:
            self.version = small_files.read_text(self._folder / "version")
        except OSError:
            self.version = ""
        return before != (self.version, self.load_id)
