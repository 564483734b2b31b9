"""
The Node object, as far as the sink reads it.

Source: Kubernetes API v1, Node, NodeCondition, Taint, ObjectMeta.managedFields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from vitald.checking import Unexpected, read_text
from vitald.text import replace_unprintable
from vitald.timestamps import parse_rfc3339

_MAX_ERROR = 200
Json = Mapping[str, object]
MANAGER = "vitald"  # the field manager of what is written here


class NameKind(Enum):
    CONDITION = "condition"
    LABEL = "label"
    ANNOTATION = "annotation"


@dataclass(frozen=True, slots=True)
class NodeName:
    """The name of something on the node that has field managers."""

    kind: NameKind
    name: str

    def describe(self) -> str:
        return f"{self.kind.value} {self.name}"


def list_by_kind(names: Iterable[NodeName], kind: NameKind) -> list[str]:
    """The names of one kind, in order."""
    return sorted(each.name for each in names if each.kind is kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """One entry of `status.conditions`. Times are RFC 3339, as they are written."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition: str = ""
    last_heartbeat: str = ""

    def to_json(self) -> dict[str, object]:
        """All six fields: a strategic merge patch keeps the old value of one that is left out."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": self.last_transition,
            "lastHeartbeatTime": self.last_heartbeat,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTaint:
    key: str
    value: str = ""
    effect: str = ""
    time_added: str = ""

    def to_json(self) -> dict[str, object]:
        fields = {
            "key": self.key,
            "value": self.value,
            "effect": self.effect,
            "timeAdded": self.time_added,
        }
        return {name: value for name, value in fields.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObject:
    """The node as the API server has it."""

    name: str
    uid: str
    resource_version: str
    created: float = 0.0  # seconds since the epoch, 0 if it does not say
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, NodeCondition] = field(default_factory=dict)
    taints: tuple[NodeTaint, ...] = ()
    managers: Mapping[NodeName, frozenset[str]] = field(default_factory=dict)
    """The API server's record of who wrote what: the field managers of each name."""
    written_at: str = ""
    """When vitald wrote last, by the API server's clock; "" if never."""

    def find_managers(self, name: NodeName) -> frozenset[str]:
        return self.managers.get(name, frozenset())

    def list_names(self) -> frozenset[NodeName]:
        return frozenset(
            NodeName(kind, name)
            for kind, names in (
                (NameKind.CONDITION, self.conditions),
                (NameKind.LABEL, self.labels),
                (NameKind.ANNOTATION, self.annotations),
            )
            for name in names
        )

    def list_sole_names(self) -> frozenset[NodeName]:
        """What only vitald manages."""
        ours = frozenset({MANAGER})
        return frozenset(name for name, managers in self.managers.items() if managers == ours)


def parse_node(document: object) -> NodeObject:
    """The node in an answer. Raises ValueError that names the key."""
    node = _read_table(document, "node")
    metadata = _read_table(node.get("metadata"), "metadata")
    spec = _read_table(node.get("spec", {}), "spec")
    status = _read_table(node.get("status", {}), "status")
    conditions = [_parse_condition(entry) for entry in _read_entries(status, "conditions")]
    managed = _read_entries(metadata, "managedFields")
    return NodeObject(
        name=_read_field(metadata, "name"),
        uid=_read_field(metadata, "uid"),
        resource_version=_read_field(metadata, "resourceVersion"),
        created=_read_moment(metadata, "creationTimestamp"),
        labels=_read_words(metadata, "labels"),
        annotations=_read_words(metadata, "annotations"),
        conditions={condition.type: condition for condition in conditions},
        taints=tuple(_parse_taint(entry) for entry in _read_entries(spec, "taints")),
        managers=_find_managers(managed),
        written_at=_find_last_write(managed),
    )


def _parse_condition(entry: Json) -> NodeCondition:
    return NodeCondition(
        type=_read_field(entry, "type"),
        status=_read_field(entry, "status"),
        reason=_read_field(entry, "reason", optional=True),
        message=_read_field(entry, "message", optional=True),
        last_transition=_read_field(entry, "lastTransitionTime", optional=True),
        last_heartbeat=_read_field(entry, "lastHeartbeatTime", optional=True),
    )


def _parse_taint(entry: Json) -> NodeTaint:
    return NodeTaint(
        key=_read_field(entry, "key"),
        value=_read_field(entry, "value", optional=True),
        effect=_read_field(entry, "effect", optional=True),
        time_added=_read_field(entry, "timeAdded", optional=True),
    )


# Where `fieldsV1` has the names of each kind, and what stands before and after a name there:
# `k:{"type":"Ready"}`, `f:kubernetes.io/hostname`.
_MANAGED = {
    NameKind.CONDITION: (("f:status", "f:conditions"), 'k:{"type":"', '"}'),
    NameKind.LABEL: (("f:metadata", "f:labels"), "f:", ""),
    NameKind.ANNOTATION: (("f:metadata", "f:annotations"), "f:", ""),
}


def _find_managers(entries: Iterable[Json]) -> dict[NodeName, frozenset[str]]:
    owners: dict[NodeName, set[str]] = {}
    for entry in entries:
        manager = str(entry.get("manager", ""))
        for kind in NameKind:
            for name in _list_managed(entry.get("fieldsV1"), kind):
                owners.setdefault(name, set()).add(manager)
    return {name: frozenset(managers) for name, managers in owners.items()}


def _find_last_write(entries: Iterable[Json]) -> str:
    """RFC 3339 in UTC, so that the latest is the greatest."""
    times = (str(each.get("time", "")) for each in entries if each.get("manager") == MANAGER)
    return max(times, default="")


def _list_managed(fields: object, kind: NameKind) -> list[NodeName]:
    """The names of one kind in one `fieldsV1`."""
    path, before, after = _MANAGED[kind]
    for key in path:
        fields = fields.get(key) if isinstance(fields, dict) else None
    return [
        NodeName(kind, key[len(before) : len(key) - len(after)])
        for key in (fields if isinstance(fields, dict) else ())
        if key.startswith(before) and key.endswith(after)
    ]


def _read_table(value: object, key: str) -> Json:
    if not isinstance(value, dict):
        raise _explain_value(key, Unexpected("a table", value))
    return value


def _explain_value(key: str, error: Unexpected) -> ValueError:
    """In one line of a log: what was found may be as long as the answer."""
    return ValueError(replace_unprintable(f"{key}: {error}"[:_MAX_ERROR]))


def _read_entries(table: Json, key: str) -> list[Json]:
    entries = table.get(key) or []
    if not isinstance(entries, list):
        raise _explain_value(key, Unexpected("a list", entries))
    return [_read_table(entry, key) for entry in entries]


def _read_field(table: Json, key: str, *, optional: bool = False) -> str:
    value = table.get(key)
    if optional and value is None:
        return ""
    try:
        return read_text(value)
    except Unexpected as error:
        raise _explain_value(key, error) from None


def _read_moment(table: Json, key: str) -> float:
    text = _read_field(table, key, optional=True)
    try:
        return parse_rfc3339(text).timestamp() if text else 0.0
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _read_words(table: Json, key: str) -> dict[str, str]:
    words = _read_table(table.get(key) or {}, key)
    return {str(name): str(value) for name, value in words.items()}
