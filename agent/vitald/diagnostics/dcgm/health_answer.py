"""
What `dcgmi health -c -j` prints: which watch of which device reports what.

Of several incidents of one watch and one device DCGM prints the worst value, and the texts after
each other.

Source: DCGM 3.x and 4.x, dcgmi/Health.cpp, modules/health/DcgmHealthWatch.cpp and
dcgmlib/dcgm_errors.h; output forms from public projects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from vitald.collectors.small_files import presentable
from vitald.diagnostics.run import tool

NAME = "dcgm_health"
_MAX_COMPLAINTS = 256  # in one answer
_VALUES = ("Healthy", "Warning", "Failure")
_SYSTEMS = {
    "pcie system": "pcie",
    "nvlink system": "nvlink",
    "pmu": "pmu",
    "mcu": "mcu",
    "memory system": "memory",
    "sm": "sm",
    "inforom system": "inforom",
    "thermal system": "thermal",
    "power system": "power",
    "driver": "driver",
    "connectx system": "connectx",
}
# Where the text of a further incident begins. A comma precedes it, unless DCGM lost that where it
# cut the text to fit its table.
_NEXT_INCIDENT = re.compile(
    r",? (?=Detected (?:more than )?[0-9]|GPU [0-9]+(?:: Fabric State|'s NvLink| has fallen)"
    r"|IMEX (?:domain|daemon) status|[0-9.]+ \S+ NvLink errors)"
)


@dataclass(frozen=True, slots=True)
class Complaint:
    """The state of one watch of one device. `entity` is empty if DCGM names none."""

    group: str  # as DCGM writes it: `GPU`, `NvSwitch`, `CPU`
    entity: str
    system: str
    value: str
    text: str = ""

    @property
    def gpu(self) -> int | None:
        return (
            int(self.entity)
            if self.group.upper() == "GPU" and re.fullmatch(r"[0-9]{1,4}", self.entity)
            else None
        )

    @property
    def where(self) -> str:
        return f"{self.group} {self.entity}".strip()

    @property
    def code(self) -> str:
        name = (
            _SYSTEMS.get(self.system.lower())
            or re.sub(r"[^a-z0-9]+", "_", self.system.lower()).strip("_")[:40]
        )
        return f"{NAME}/{name or 'other'}"

    def split_incidents(self) -> tuple[Complaint, ...]:
        """A complaint for each incident, as far as its text begins in a known way."""
        return tuple(replace(self, text=text) for text in _NEXT_INCIDENT.split(self.text))


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """`overall`: DCGM's value for all devices together, "" if there is none. `unread`: parts in an
    unknown form.
    """

    overall: str
    complaints: tuple[Complaint, ...] = ()
    unread: tuple[str, ...] = ()


def read_answer(text: str) -> HealthAnswer | None:
    """Reads the output of `dcgmi health -c -j`. None if it holds no complete document."""
    found = tool.find_document(text)
    body = found.get("body") if found is not None else None
    if not isinstance(body, dict):
        return None
    overall = _get_value(body.get("Overall Health"))
    complaints: list[Complaint] = []
    unread: list[str] = []
    for group, entities in body.items():
        if group == "Overall Health":
            continue
        for entity, node in _get_children(entities).items():
            watches = list(_list_watches(presentable(group), presentable(entity), node))
            complaints += (watch for watch in watches if watch.value in ("Warning", "Failure"))
            unread += (
                f"{watch.where} {watch.system}: {watch.value or 'nothing'}"
                for watch in watches
                if watch.value not in _VALUES
            )
        if not _get_children(entities):
            unread.append(presentable(group))
        if len(complaints) > _MAX_COMPLAINTS:
            unread.append(f"more than {_MAX_COMPLAINTS} complaints")
            break
    if overall in ("Warning", "Failure") and not complaints:
        complaints.append(Complaint("", "", "", overall, "DCGM names no device"))
    return HealthAnswer(
        overall, tuple(complaints[:_MAX_COMPLAINTS]), tuple(unread[:_MAX_COMPLAINTS])
    )


def _list_watches(group: str, entity: str, node: object) -> Iterator[Complaint]:
    """All watches of one device; the device itself if it names none."""
    systems = _get_children(_get_children(node).get("Errors"))
    for system, watch in systems.items():
        yield Complaint(group, entity, presentable(system), _get_value(watch), _join_text(watch))
    value = _get_value(node)
    if not systems and value != "Healthy":
        yield Complaint(group, entity, "", value, "DCGM names no watch")


def _get_children(node: object) -> Mapping[str, object]:
    children = node.get("children") if isinstance(node, dict) else None
    return children if isinstance(children, dict) else {}


def _get_value(node: object) -> str:
    value = node.get("value") if isinstance(node, dict) else node
    return presentable(value).strip().capitalize() if isinstance(value, str) else ""


def _join_text(node: object) -> str:
    """Joins the pieces into which DCGM cuts a text to fit its table."""
    pieces = node.get("overflow") if isinstance(node, dict) else None
    pieces = [pieces] if isinstance(pieces, str) else pieces
    if not isinstance(pieces, list):
        return ""
    return presentable(
        " ".join(piece.strip() for piece in pieces[:64] if isinstance(piece, str)).strip()
    )
