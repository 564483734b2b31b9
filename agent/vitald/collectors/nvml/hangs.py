"""The GPUs, and the node itself, on which a call of the driver does not return."""

from __future__ import annotations

from typing import Any

from vitald.model import NODE, Component, Fields


class HungComponents:
    """Hung components, each with the fields of the event that reported the call."""

    def __init__(self, memory: Any = ()) -> None:
        """Raises TypeError, ValueError or AttributeError for a memory of another format."""
        self._fields: dict[str, Fields] = {
            str(name): fields for name, fields in dict(memory).items()
        }

    @property
    def memory(self) -> dict[str, Fields]:
        return self._fields

    def add_hang(self, component: Component, fields: Fields) -> None:
        self._fields[component.name] = fields

    def end_hang(self, component: Component) -> bool:
        """True if the component was hung."""
        if component.name not in self._fields:
            return False
        del self._fields[component.name]
        return True

    def list_present(self, on_pci: set[str]) -> list[tuple[Component, Fields]]:
        """Without GPUs that are no longer on PCI."""
        hung = [Component.parse_name(name) for name in sorted(self._fields)]
        return [
            (component, dict(self._fields[component.name]))
            for component in hung
            if component == NODE or component.id in on_pci
        ]
