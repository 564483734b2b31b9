"""
Reads entries of the catalogue: what a code means, from the keys of its table.

Each mistake is appended to `errors` with file, entry and key, and reading continues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, TypeVar, overload

from vitald import tomlfile
from vitald.catalog.diagnosis import Diagnosis, read_diagnosis
from vitald.catalog.rules import (
    Case,
    Clears,
    DeviceListing,
    Evidence,
    FaultClass,
    Rule,
    Scalar,
)
from vitald.catalog.shape import HEAD, begins_with_driver, expand_macros, first_letters
from vitald.catalog.threshold import Threshold, read_threshold
from vitald.checking import read_flag, read_member
from vitald.model.words import Action, ComponentKind, When

E = TypeVar("E", bound=Enum)
V = TypeVar("V")


class EntryReader:
    """Checks one table key by key, and appends mistakes to `errors`."""

    def __init__(
        self,
        code: str,
        keys: tomlfile.Table,
        origin: str,
        escalation_policies: Mapping[str, object],
        errors: list[str],
    ) -> None:
        self.code, self.keys, self.origin, self.escalation_policies, self.errors = (
            code,
            keys,
            origin,
            escalation_policies,
            errors,
        )
        self.kind, _, self.name = code.partition("/")

    def report(self, key: str, what: str) -> None:
        self.errors.append(f"{self.origin}: [{self.kind}.{self.name}] {key}: {what}")

    def read_rule(self) -> Rule | None:
        before = len(self.errors)
        for key in self.keys:
            if key not in _KEYS:
                self.report(key, f"unknown key{tomlfile.suggest_word(key, _KEYS)}")
        thresholds = self.read_thresholds()
        lasting = bool(thresholds) and thresholds[0].is_state
        rule = Rule(
            code=self.code,
            kind=self.kind,
            title=self.read_text("title", required=True),
            meaning=self.read_text("meaning", required=True),
            advice=self.read_text("advice"),
            mnemonic=self.read_text("mnemonic"),
            fault_class=self.member("class", FaultClass, FaultClass.UNKNOWN, required=True),
            action=self.member("action", Action, Action.INSPECT, required=True),
            when=self.member("when", When, When.NOW),
            unusable=self.read_flag("unusable") or False,
            unknown=self.read_flag("unknown") or False,
            clears=self.read_clears(),
            escalation=self.read_escalation(),
            source=self.read_text("source", required=True),
            cases=self.read_cases("cases")
            + self.read_cases("also")
            + ((_RECOVERED,) if lasting else ()),
            fault=self.read_text("fault") or self.code,
            state=self.read_flag("state") or lasting,
            thresholds=thresholds,
            driver_recommendation=self.read_flag("driver_recommendation") or False,
            context=self.read_flag("context") or False,
            evidence=self.member("evidence", Evidence, None),
            clears_codes=self.read_texts("clears_codes"),
            of=self.read_kinds("of"),
            component=self.member("component", ComponentKind, ComponentKind.NODE),
            at_probe=self.read_flag("at_probe") or False,
            shared_cause=self.read_flag("shared_cause") or False,
            of_peers=self.read_flag("of_peers") or False,
            fatal=self.read_flag("fatal"),
            among=self.member("among", DeviceListing, None),
            match=self.read_match(),
            starts=self.read_texts("starts"),
            contains=self.read_texts("contains"),
            in_stack_after=self.read_texts("in_stack_after"),
            samples=self.read_texts("samples"),
            diagnostic=self.read_diagnostic(),
            origin=self.origin,
        )
        if len(self.errors) == before:
            rule = self.limit_replacement(rule)
        return rule if len(self.errors) == before else None

    def limit_replacement(self, rule: Rule) -> Rule:
        """Report a replacement for a cause that is outside the device. The `also` cases, which all
        entries of a kind have in common, raise the action to a reboot instead.
        """
        if rule.fault_class.may_require_replacement:
            return rule
        actions = {"action": rule.action}
        own = self.read_cases("cases")
        for number, case in enumerate(own, start=1):
            actions[f"cases #{number}"] = case.action or case.at_least or rule.action
        for place, action in actions.items():
            if action is Action.REPLACE_NODE:
                self.report(place, describe_replacement(rule))
        cases = (
            replace(case, at_least=Action.REBOOT_NODE)
            if case.at_least is Action.REPLACE_NODE
            else case
            for case in rule.cases
        )
        return replace(rule, cases=tuple(cases))

    def read_text(self, key: str, *, required: bool = False) -> str:
        value = self.keys.get(key, "")
        if not isinstance(value, str) or (required and not value):
            self.report(
                key, "missing" if key not in self.keys else f"expected a string, found {value!r}"
            )
            return ""
        return value

    def read_texts(self, key: str) -> tuple[str, ...]:
        value = self.keys.get(key, [])
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            self.report(key, f"expected a list of strings, found {value!r}")
            return ()
        return tuple(values)

    def read_flag(self, key: str) -> bool | None:
        value = self.keys.get(key)
        return None if value is None else self.read_checked(key, read_flag, value)

    def read_checked(self, key: str, read: Callable[[object], V], value: object) -> V | None:
        """The result of `read`; None, with a mistake reported, if it raises ValueError."""
        try:
            return read(value)
        except ValueError as error:
            self.report(key, str(error))
            return None

    def read_kinds(self, key: str) -> tuple[ComponentKind, ...]:
        return tuple(
            kind
            for word in self.read_texts(key)
            if (kind := self.read_enum(key, word, ComponentKind)) is not None
        )

    @overload
    def member(self, key: str, enum: type[E], default: E, *, required: bool = False) -> E: ...

    @overload
    def member(self, key: str, enum: type[E], default: None) -> E | None: ...

    def member(
        self, key: str, enum: type[E], default: E | None, *, required: bool = False
    ) -> E | None:
        if key not in self.keys:
            if required:
                self.report(key, "missing")
            return default
        return self.read_enum(key, self.keys[key], enum) or default

    def read_enum(self, key: str, value: object, enum: type[E]) -> E | None:
        return self.read_checked(key, lambda word: read_member(word, enum), value)

    def read_escalation(self) -> str:
        name = self.read_text("escalation", required=True)
        if name:
            self.check_escalation("escalation", name)
        return name

    def check_escalation(self, place: str, name: object) -> None:
        if not isinstance(name, str) or name not in self.escalation_policies:
            hint = tomlfile.suggest_word(str(name), self.escalation_policies)
            self.report(place, f"no escalation policy {name!r}{hint}")

    def read_clears(self) -> Clears:
        words = self.read_texts("clears")
        flags: dict[str, bool] = {}
        diagnostic: int | None = None
        quiet_s: float | None = None
        for word in words:
            name, _, value = word.partition(":")
            try:
                if name == "quiet":
                    quiet_s = tomlfile.parse_duration(value)
                elif name == "diagnostic":
                    diagnostic = int(value)
                    if diagnostic not in (1, 2, 3, 4):
                        raise ValueError(f"{value!r} is not a DCGM run level (1 to 4)")
                elif name in ("reboot", "device_reset", "recovers", "replaced") and not value:
                    flags[name] = True
                else:
                    raise ValueError(
                        "must be one of reboot, device_reset, recovers, replaced, diagnostic:LEVEL,"
                        f" quiet:DURATION, not {word!r}"
                    )
            except ValueError as error:
                self.report("clears", str(error))
        if not words and self.keys.get("action") != "none":
            self.report("clears", "missing: a finding must have a way out")
        return Clears(
            reboot=flags.get("reboot", False),
            device_reset=flags.get("device_reset", False),
            recovers=flags.get("recovers", False),
            replaced=flags.get("replaced", False),
            diagnostic=diagnostic,
            quiet_s=quiet_s,
        )

    def read_cases(self, name: str) -> tuple[Case, ...]:
        tables = self.keys.get(name, [])
        if not isinstance(tables, list):
            self.report(name, f"expected a list of tables, found {tables!r}")
            return ()
        cases = []
        for number, table in enumerate(tables, start=1):
            place = f"{name} #{number}"
            if not isinstance(table, dict) or not isinstance(table.get("where"), dict):
                self.report(place, "expected { where = { field = value }, action = ... }")
                continue
            cases.append(self._read_case(place, table))
        return tuple(cases)

    def _read_case(self, place: str, table: dict[str, Any]) -> Case:
        for key in table:
            if key not in _CASE_KEYS:
                self.report(
                    f"{place} {key}", f"unknown key{tomlfile.suggest_word(key, _CASE_KEYS)}"
                )
        where = {field: _read_scalars(value) for field, value in table["where"].items()}
        for field, scalars in where.items():
            if not scalars:
                self.report(
                    f"{place} where.{field}",
                    "expected a string, a number, true, false, or a list of them",
                )
        if ("action" in table) == ("at_least" in table):
            self.report(place, "needs either action or at_least")
        for key in ("title", "advice"):
            if not isinstance(table.get(key, ""), str):
                self.report(f"{place} {key}", f"expected a string, found {table[key]!r}")
        if not isinstance(table.get("unusable", False), bool):
            self.report(f"{place} unusable", f"expected true or false, found {table['unusable']!r}")
        if "escalation" in table:
            self.check_escalation(f"{place} escalation", table["escalation"])

        def read_word(key: str, enum: type[E]) -> E | None:
            return self.read_enum(f"{place} {key}", table[key], enum) if key in table else None

        return Case(
            where=where,
            action=read_word("action", Action),
            at_least=read_word("at_least", Action),
            when=read_word("when", When),
            unusable=table.get("unusable"),
            title=table.get("title"),
            advice=table.get("advice"),
            escalation=str(table.get("escalation", "")),
        )

    def read_thresholds(self) -> tuple[Threshold, ...]:
        tables = self.keys.get("thresholds", [])
        tables = [tables] if isinstance(tables, dict) else tables
        if not isinstance(tables, list):
            self.report("thresholds", f"expected a table or a list of tables, found {tables!r}")
            return ()
        thresholds = []
        for number, table in enumerate(tables, start=1):
            try:
                thresholds.append(read_threshold(table))
            except (TypeError, ValueError, OverflowError, AttributeError) as error:
                self.report(f"thresholds #{number}", str(error))
        if len({threshold.is_state for threshold in thresholds}) > 1:
            self.report("thresholds", "either all of them last, or none (rises, changes)")
        return tuple(thresholds)

    def read_diagnostic(self) -> Diagnosis | None:
        if "diagnostic" not in self.keys:
            return None
        return self.read_checked("diagnostic", read_diagnosis, self.keys["diagnostic"])

    def read_match(self) -> tuple[str, ...]:
        patterns = []
        starts = self.read_texts("starts")
        if any(len(start) < HEAD for start in starts):
            self.report("starts", f"needs the first {HEAD} letters of each beginning")
        for pattern in map(expand_macros, self.read_texts("match")):
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                self.report("match", f"not a regular expression: {error}: {pattern}")
                continue
            if not (
                begins_with_driver(pattern)
                or first_letters(starts, pattern)
                or self.read_texts("contains")
                or self.read_texts("in_stack_after")
            ):
                self.report(
                    "match",
                    f"needs {HEAD} fixed letters at its beginning, or `starts`, or `contains`:"
                    f" {pattern}",
                )
            patterns.append(pattern)
        return tuple(patterns)


def describe_replacement(rule: Rule) -> str:
    """The mistake of an entry that requires a replacement though its class may not."""
    name = rule.fault_class.value
    return f"a fault of class {name} never asks for replace_node: its cause is not in the device"


def _read_scalars(value: object) -> tuple[Scalar, ...]:
    """The values; empty if one of them is neither text, number nor flag."""
    values = value if isinstance(value, list) else [value]
    scalars = tuple(item for item in values if isinstance(item, (str, int, bool)))
    return scalars if len(scalars) == len(values) else ()


_RECOVERED = Case(where={"recovered": (True,)}, action=Action.NONE, title="no longer so")
_KEYS = (
    *(
        "title",
        "mnemonic",
        "meaning",
        "advice",
        "class",
        "action",
        "when",
        "unusable",
        "clears",
        "escalation",
        "cases",
        "also",
        "source",
    ),
    *(
        "thresholds",
        "fault",
        "state",
        "driver_recommendation",
        "context",
        "evidence",
        "of",
        "clears_codes",
        "component",
        "fatal",
        "match",
        "starts",
        "contains",
        "samples",
    ),
    *("at_probe", "among", "shared_cause", "of_peers", "unknown", "in_stack_after"),
    "diagnostic",
    "policy",  # replaced by its keys before an entry is read; listed here for suggestions
)
_CASE_KEYS = (
    "where",
    "action",
    "at_least",
    "when",
    "unusable",
    "title",
    "advice",
    "escalation",
)
