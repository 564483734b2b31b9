"""
From a record's text to what it reports: the two grammars that are code (Xid, SXid) and the shapes that are data.

An ordinary line must cost next to nothing: its first letters, or a text that must be in it, rule out all shapes but a
few before any regular expression is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.catalog.loader import MACROS
from agent.catalog.rules import Rule
from agent.model import Value
from agent.sources.kernel_log import sxid, xid
from agent.sources.kernel_log.record import unescape
from agent.sources.kernel_log.sighting import Sighting, normal_pci

_HEAD = 3  # letters that a fixed beginning is looked up by
_NUMBERS = {"pid", "link", "cpu", "seconds", "errors", "core", "slot_number"}
_PROBED = re.compile(r"NVRM: The NVIDIA GPU (?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s*\Z")
_DEVICE_LINE = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_\-]{0,31} [0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
# A crash report begins with the process's name and ends with a file's, both chosen by its user: "XFS (a): [29118]:
# segfault at 0 ip ... in Shutting down filesystem[...]" is a forgery. No fault line has this shape.
# A name has 15 bytes, each of which may be escaped as four. Source: Linux arch/x86/mm/fault.c, arch/arm64/kernel/traps.c.
_CRASH = re.compile(rb"(?:\\x[0-9a-f]{2}|[^\\]){0,15}\[\d{1,10}\]: ")
_PROBE_WINDOW = 2  # records between the probe's address and its complaint


class _Shape:
    """One regular expression of one rule."""

    __slots__ = ("contains", "pattern", "rule")

    def __init__(self, rule: Rule, pattern: str) -> None:
        self.rule = rule
        self.contains = rule.contains.encode()
        self.pattern = re.compile(pattern, re.S)

    def sighting(self, text: str) -> Sighting | None:
        found = self.pattern.match(text)
        if found is None:
            return None
        fields: dict[str, Value] = {}
        for name, value in found.groupdict().items():
            if value is not None:
                fields[name] = int(value) if name in _NUMBERS else value
        pci = fields.pop("pci", None)
        pid, process = fields.pop("pid", None), fields.pop("process", None)
        if isinstance(blamed := fields.get("blamed"), str):
            fields["blamed"] = normal_pci(blamed)
        return Sighting(
            kind=self.rule.kind,
            code=self.rule.code,
            pci=normal_pci(pci) if isinstance(pci, str) else None,
            pid=pid if isinstance(pid, int) else None,
            process=process if isinstance(process, str) else None,
            fatal=self.rule.fatal,
            fields=fields,
        )


class Recogniser:
    """Knows every line shape. Keeps one thing between records: an address that the next record refers to."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._by_head: dict[bytes, list[_Shape]] = {}
        self._device: list[_Shape] = []
        anywhere: dict[bytes, list[_Shape]] = {}
        for rule in rules:
            for pattern in rule.match:
                shape = _Shape(rule, pattern)
                heads = [start.encode() for start in rule.starts] or literal_heads(pattern)
                if pattern.startswith(MACROS["{driver}"]):
                    self._device.append(shape)
                elif heads:
                    for head in heads:
                        self._by_head.setdefault(head, []).append(shape)
                elif shape.contains:
                    anywhere.setdefault(shape.contains, []).append(shape)
                else:
                    raise ValueError(
                        f"{rule.origin}: [{rule.code.replace('/', '.')}] match: needs {_HEAD} fixed letters at its beginning, `starts`, or `contains`"
                    )
        self._anywhere = tuple(anywhere.items())
        self._probed: tuple[str, int] | None = None

    def recognise(self, text: bytes) -> Sighting | None:
        """What the record reports, or None. `text` is one whole record, still escaped as /dev/kmsg gives it."""
        sighting = self._match(text)
        return sighting if sighting is None or not _CRASH.match(text) else None

    def _match(self, text: bytes) -> Sighting | None:
        head = text[:_HEAD]
        if head == b"NVR" or head == b"nvi":
            return self._nvidia(text)
        shapes = self._by_head.get(head)
        if shapes is not None and (sighting := _first(shapes, text)) is not None:
            return sighting
        if _DEVICE_LINE.match(text) and (sighting := _first(self._device, text)) is not None:
            return sighting
        for contained, found in self._anywhere:
            if contained in text and (sighting := _first(found, text)) is not None:
                return sighting
        return None

    def _nvidia(self, text: bytes) -> Sighting | None:
        whole = unescape(text)
        sighting = (
            xid.recognise(whole) or sxid.recognise(whole) or _first(self._by_head.get(text[:_HEAD], ()), text) or _first(self._device, text)
        )
        if sighting is None:
            if (probed := _PROBED.match(whole)) is not None:
                self._probed = normal_pci(probed["pci"]), _PROBE_WINDOW
            elif self._probed is not None:
                pci, left = self._probed
                self._probed = (pci, left - 1) if left > 1 else None
        elif sighting.code == "gpu_lost/not_responding" and self._probed is not None:
            sighting = _at(sighting, self._probed[0])
            self._probed = None
        return sighting


def _first(shapes: Iterable[_Shape], text: bytes) -> Sighting | None:
    whole: str | None = None
    for shape in shapes:
        if shape.contains and shape.contains not in text:
            continue
        if whole is None:
            whole = unescape(text)
        sighting = shape.sighting(whole)
        if sighting is not None:
            return sighting
    return None


def _at(sighting: Sighting, pci: str) -> Sighting:
    return Sighting(kind=sighting.kind, code=sighting.code, pci=pci, fields=sighting.fields)


def literal_heads(pattern: str) -> list[bytes]:
    """The fixed first letters of a regular expression, `_HEAD` of them, or nothing where it has none."""
    head = ""
    position = 0
    while position < len(pattern) and len(head) < _HEAD:
        char = pattern[position]
        if char == "\\" and position + 1 < len(pattern) and not pattern[position + 1].isalnum():
            char, position = pattern[position + 1], position + 1
        elif char in "\\[](){}?*+|^$.":
            break
        if position + 1 < len(pattern) and pattern[position + 1] in "?*{":
            break
        head += char
        position += 1
    return [head.encode()] if len(head) == _HEAD and "|" not in _top_level(pattern) else []


def _top_level(pattern: str) -> str:
    """The pattern without what stands in parentheses or brackets."""
    depth, outside, skip, bracket = 0, "", False, False
    for char in pattern:
        if skip:
            skip = False
        elif char == "\\":
            skip = True
        elif bracket:
            bracket = char != "]"
        elif char == "[":
            bracket = True
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif depth == 0:
            outside += char
    return outside
