"""
Reads results of NVIDIA's Cluster Readiness Engine (NVCRE), as `kubectl get -o json` prints them: a
Certification, or a list of Certifications and of the ConfigMaps that name the nodes.

NVCRE's reasons differ in weight: hardware that was seen to fail, and a measured value below its
threshold, concern the node; a workload that failed may concern any node of its group.

Source: NVIDIA/cluster-readiness-engine, api/v1alpha1/certification_types.go; NVIDIA/NVSentinel,
the package nvcre of its certification monitor (keys and encodings of the ConfigMaps).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vitald.diagnostics.dcgm.values import to_text
from vitald.model.diagnostic import Outcome

GROUPS = ("nvcre.nvidia.com/", "cre.nvidia.com/")
_FAILED_KEY, _SUCCEEDED_KEY = "failed-nodes.json.gz", "succeeded-nodes.csv.gz"
# "HardwareDetected" in the code of NVSentinel, "HardwareFailureDetected" in NVCRE's documentation
_OF_NODE = ("HardwareDetected", "HardwareFailureDetected", "ThresholdViolation")
_SUCCEEDED, _FAILED = "Succeeded", "Failed"
_MAX_ITEMS, _MAX_CATEGORIES, _MAX_NODES = 20_000, 256, 100_000
_MAX_NAMED = 8
_MAX_UNPACKED = 32 * 1024 * 1024
_GZIP = 31  # zlib's number of the format


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedNode:
    """A node that failed a category. `reason`: NVCRE's."""

    node: str
    category: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Certification:
    """One Certification. `categories`: status by `domain/variant`; `passed`: nodes by category.

    `missing`: the ConfigMaps that it refers to and that are not in the document, or not readable.
    """

    name: str
    outcome: Outcome
    reason: str
    categories: Mapping[str, str]
    failed: tuple[FailedNode, ...]
    passed: Mapping[str, tuple[str, ...]]
    missing: tuple[str, ...]


def find_certifications(text: str) -> list[Certification] | None:
    """None if the text is no such document."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    items = document.get("items") if document.get("kind") in ("List", "CertificationList") else None
    listed = items[:_MAX_ITEMS] if isinstance(items, list) else [document]
    objects = [item for item in listed if isinstance(item, dict)]
    found = [item for item in objects if _is_certification(item)]
    if not found:
        return None
    maps = {
        _get_key(item): item["binaryData"]
        for item in objects
        if item.get("kind") == "ConfigMap" and isinstance(item.get("binaryData"), dict)
    }
    return [_read_certification(item, maps) for item in found]


def _is_certification(item: Mapping[str, object]) -> bool:
    return item.get("kind") == "Certification" and str(item.get("apiVersion")).startswith(GROUPS)


def _get_key(item: Mapping[str, object]) -> tuple[str, str]:
    metadata = _get_table(item, "metadata")
    return to_text(metadata.get("namespace")), to_text(metadata.get("name"))


def _read_certification(
    item: Mapping[str, object], maps: Mapping[tuple[str, str], Mapping[str, object]]
) -> Certification:
    namespace, name = _get_key(item)
    status = _get_table(item, "status")
    categories: dict[str, str] = {}
    failed: list[FailedNode] = []
    passed: dict[str, tuple[str, ...]] = {}
    missing: list[str] = []

    def read_list(entry: Mapping[str, object], reference: str, key: str) -> str | None:
        """The list of nodes that an entry refers to; None if it has none that can be read."""
        config_map = to_text(_get_table(entry, reference).get("name"))
        content = _unpack(maps.get((namespace, config_map), {}).get(key))
        if config_map and content is None:
            missing.append(config_map)
        return content

    for entry in _list_tables(status.get("categoryStatuses"), _MAX_CATEGORIES):
        category = f"{to_text(entry.get('domain'))}/{to_text(entry.get('variant'))}"
        categories[category] = to_text(entry.get("status"))
        rows = read_list(entry, "failedNodesRef", _FAILED_KEY)
        failed += _read_failed(rows, category) if rows is not None else ()
        names = read_list(entry, "succeededNodesRef", _SUCCEEDED_KEY)
        if names is not None:
            nodes = (to_text(node) for node in names.split(",")[:_MAX_NODES])
            passed[category] = tuple(node for node in nodes if node)
    outcome, reason = _find_outcome(_find_condition(status), categories, failed)
    return Certification(
        name=f"{namespace}/{name}" if namespace else name,
        outcome=outcome,
        reason=reason,
        categories=categories,
        failed=tuple(failed),
        passed=passed,
        missing=tuple(dict.fromkeys(missing)),
    )


def _find_outcome(
    condition: str, categories: Mapping[str, str], failed: list[FailedNode]
) -> tuple[Outcome, str]:
    of_node = [each for each in failed if each.reason in _OF_NODE]
    if of_node:
        nodes = [*dict.fromkeys(each.node for each in of_node)]
        more = f" and {len(nodes) - _MAX_NAMED} more" if len(nodes) > _MAX_NAMED else ""
        return Outcome.FAIL, f"failed: {', '.join(nodes[:_MAX_NAMED])}{more}"
    if condition == _SUCCEEDED and not failed and set(categories.values()) == {_SUCCEEDED}:
        return Outcome.PASS, ""
    if failed:
        return Outcome.INCONCLUSIVE, "workloads failed, which may be the fault of any node"
    if condition == _FAILED:
        return Outcome.INCONCLUSIVE, "it failed, and no node is named in this document"
    return Outcome.INCONCLUSIVE, "it has not ended, or does not say how"


def _find_condition(status: Mapping[str, object]) -> str:
    """Which of Succeeded and Failed is true; empty if none is."""
    for condition in _list_tables(status.get("conditions"), _MAX_CATEGORIES):
        if condition.get("type") in (_SUCCEEDED, _FAILED) and condition.get("status") == "True":
            return str(condition["type"])
    return ""


def _read_failed(content: str, category: str) -> Iterator[FailedNode]:
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError):
        rows = [{"name": "?", "reason": "the list of failed nodes is not readable"}]
    for row in _list_tables(rows, _MAX_NODES):
        yield FailedNode(
            node=to_text(row.get("name")),
            category=category,
            reason=to_text(row.get("reason")),
            message=to_text(row.get("message")),
        )


def _unpack(value: object) -> str | None:
    """The text of an entry of `binaryData`. None if it is absent, or not readable."""
    if not isinstance(value, str):
        return None
    try:
        packed = base64.b64decode(value, validate=True)
        unpacker = zlib.decompressobj(_GZIP)
        content = unpacker.decompress(packed, _MAX_UNPACKED)
    except (ValueError, zlib.error):
        return None
    return content.decode("utf-8", "replace") if unpacker.eof else None


def _get_table(item: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = item.get(key)
    return value if isinstance(value, dict) else {}


def _list_tables(value: object, most: int) -> list[Mapping[str, object]]:
    listed = value[:most] if isinstance(value, list) else []
    return [entry for entry in listed if isinstance(entry, dict)]
