"""
Loads a checked `Catalog` from the TOML files of this folder, a profile and the user's overrides.

Owns reading the files and merging them; `entries` reads what a code means, `tables` the rest. All
mistakes are reported at once, each with file, entry and key. Keys that many entries of one file
have in common are written once, as a policy:

    [policies.reset-fabric]             [sxid.10003]
    action = "reset_device"             policy = "reset-fabric"

A policy is known to the entries of its own file. An entry's own key replaces the policy's as a
whole: of lists and tables, nothing of the policy's is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from vitald import tomlfile
from vitald.catalog.catalog import Catalog
from vitald.catalog.correlation import CorrelationRules
from vitald.catalog.entries import EntryReader, describe_replacement
from vitald.catalog.rules import Rule
from vitald.catalog.tables import (
    FILES,
    read_correlation,
    read_escalation_policies,
    read_instances,
    read_lemon,
)
from vitald.model.event import SITE_CHECK
from vitald.model.words import Action

FOLDER = Path(__file__).parent
PROFILES = ("nvidia", *sorted(path.stem for path in (FOLDER / "profiles").glob("*.toml")))

Raw = dict[str, tuple[tomlfile.Table, str]]  # code -> keys, origin
POLICIES = "policies"
# What distinguishes the entries is written in each of them.
_ENTRY_KEYS = (
    *("title", "mnemonic", "meaning"),
    *("match", "starts", "contains", "samples"),
    "policy",
)
# Required keys, for the check of a policy and for entries whose policy is unknown or wrong:
# so that a mistake is reported once, and not again as keys that are missing.
_STAND_IN: tomlfile.Table = {
    "class": "unknown",
    "action": "none",
    "clears": ["reboot"],
    "escalation": "none",
    "source": "-",
}
Check = Callable[[str, tomlfile.Table], None]


class CatalogError(Exception):
    """The catalogue is invalid. `errors` has every mistake with its place."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


def load_catalog(
    profile: str = "nvidia",
    overrides: Mapping[str, object] | None = None,
    folder: Path = FOLDER,
    extra: Path | None = None,
) -> Catalog:
    """Load a profile's catalogue, `overrides`, and the files of `extra`. Raises CatalogError."""
    errors: list[str] = []
    tables = {
        name: _read_file(path, errors)
        for source in (folder, extra)
        if source
        for name in FILES
        if (path := source / f"{name}.toml").exists()
    }
    for name, table in tables.items():
        try:
            tomlfile.refuse_unknown_keys(table, FILES[name])
        except ValueError as error:
            errors.append(f"{name}.toml: {error}")
    escalation_policies = read_escalation_policies(
        tables.get("escalation", {"escalation": {}}), errors
    )
    raw = _read_shipped_entries(folder, profile, errors, escalation_policies)
    shipped = frozenset(raw)
    _overlay(raw, dict(overrides or {}), "[catalog.overrides]", errors, escalation_policies)
    for path in _list_extra_files(extra, errors):
        _overlay(raw, _read_file(path, errors), str(path), errors, escalation_policies)
    rules, defaults = _read_rules(raw, escalation_policies, errors)
    driver_recommendations = {code for code, rule in rules.items() if rule.driver_recommendation}
    correlation = read_correlation(
        tables.get("correlation", {"correlation": {}}), raw, driver_recommendations, errors
    )
    _check_cooccurrences(correlation, rules, errors)
    lemon = read_lemon(tables.get("lemon"), errors)
    instances = read_instances(tables.get("instances"), errors)
    if errors:
        raise CatalogError(errors)
    return Catalog(
        rules,
        defaults,
        escalation_policies=escalation_policies,
        correlation=correlation,
        lemon=lemon,
        instances=instances,
        profile=profile,
        site_codes=frozenset(rules) - shipped,
    )


def _read_shipped_entries(
    folder: Path, profile: str, errors: list[str], escalation_policies: Mapping[str, object]
) -> Raw:
    """The entries of all files, and over them those of a profile."""
    raw: Raw = {}
    for path in sorted(folder.glob("*.toml")):
        if path.stem not in FILES:
            table = _read_file(path, errors)
            _overlay(raw, table, path.name, errors, escalation_policies, fresh=True)
    if profile == "nvidia":
        return raw
    path = folder / "profiles" / f"{profile}.toml"
    if path.is_file():
        table = _read_file(path, errors)
        _overlay(raw, table, f"profiles/{path.name}", errors, escalation_policies)
    else:
        suggestion = tomlfile.suggest_word(profile, PROFILES)
        errors.append(f"[catalog] profile: there is no profile {profile!r}{suggestion}")
    return raw


def _list_extra_files(extra: Path | None, errors: list[str]) -> list[Path]:
    """The files of a user's folder that have entries."""
    if extra is None:
        return []
    paths = sorted(extra.glob("*.toml"))
    if not paths:
        errors.append(f"{extra}: no *.toml file there")
    return [path for path in paths if path.stem not in FILES]


def _read_rules(
    raw: Raw, escalation_policies: Mapping[str, object], errors: list[str]
) -> tuple[dict[str, Rule], dict[str, Rule]]:
    """The rules by code, and the defaults by kind."""

    def read_entry(code: str, keys: tomlfile.Table, origin: str) -> Rule | None:
        keys = {**_list_inherited(raw, code), **keys}
        return EntryReader(code, keys, origin, escalation_policies, errors).read_rule()

    rules: dict[str, Rule] = {}
    defaults: dict[str, Rule] = {}
    for code, (keys, origin) in raw.items():
        kind, _, name = code.partition("/")
        rule = read_entry(code, keys, origin)
        if rule is None:
            continue
        if name == "default":
            defaults[kind] = rule
        else:
            rules[code] = rule
    return rules, defaults


def _list_inherited(raw: Raw, code: str) -> tomlfile.Table:
    """The keys that an entry has from the default of its kind: all for a check of the site, which
    has no entry unless the site changes a key.
    """
    kind, _, name = code.partition("/")
    default = raw.get(f"{kind}/default", ({}, ""))[0]
    if kind == SITE_CHECK:
        return {**default, "title": str(default.get("title", "")).replace("{code}", name)}
    return {key: default[key] for key in ("cases", "also", "component") if key in default}


def _read_file(path: Path, errors: list[str]) -> tomlfile.Table:
    try:
        return tomlfile.read_toml(path)[1]
    except ValueError as error:
        errors.append(str(error))
        return {}


def _overlay(
    raw: Raw,
    tables: tomlfile.Table,
    origin: str,
    errors: list[str],
    escalation_policies: Mapping[str, object],
    *,
    fresh: bool = False,
) -> None:
    """Merge `[kind.code]` tables (or `["kind/code"]`) into `raw`, key by key."""

    def check(code: str, keys: tomlfile.Table) -> None:
        EntryReader(code, keys, origin, escalation_policies, errors).read_rule()

    policies = EntryPolicies(tables, origin, errors, check)
    for kind, entries in tables.items():
        if kind == POLICIES:
            continue
        if not isinstance(entries, dict):
            errors.append(f"{origin}: {kind}: expected tables such as [xid.79]")
            continue
        named = (
            {kind: entries}
            if "/" in kind
            else {f"{kind}/{code}": entry for code, entry in entries.items()}
        )
        for code, entry in named.items():
            if not isinstance(entry, dict):
                errors.append(f"{origin}: [{code.replace('/', '.')}]: expected a table")
                continue
            entry = policies.expand_entry(code, entry)
            if code not in raw:
                raw[code] = (entry, origin)
            elif fresh:
                errors.append(f"{origin}: [{code.replace('/', '.')}]: stands in {raw[code][1]} too")
            else:
                raw[code] = ({**raw[code][0], **entry}, origin)
    policies.report_unused()


def _check_cooccurrences(
    correlation: CorrelationRules, rules: Mapping[str, Rule], errors: list[str]
) -> None:
    """Report a replacement that a co-occurrence requires for a cause outside the device."""
    for rule in correlation.rules:
        for change in rule.cooccurrences:
            entry = rules.get(change.code)
            if entry is None or entry.fault_class.may_require_replacement:
                continue
            if change.action is Action.REPLACE_NODE:
                place = f"correlation.toml: [correlation.{rule.name}] cooccurrences: {change.code}"
                errors.append(f"{place}: {describe_replacement(entry)}")


class EntryPolicies:
    """
    The policies of one file, or of the configuration's overrides.

    `tables` is what the file holds, `origin` its name for messages. `check` is called with the
    name `policies/NAME` and the keys of a whole entry, and appends their mistakes to `errors`.
    """

    def __init__(
        self,
        tables: tomlfile.Table,
        origin: str,
        errors: list[str],
        check: Check,
    ) -> None:
        self._origin = origin
        self._errors = errors
        self._unused: set[str] = set()
        self._policies: dict[str, tomlfile.Table] = {}
        section = tables.get(POLICIES, {})
        if not isinstance(section, dict):
            errors.append(f"{origin}: [{POLICIES}]: expected tables such as [{POLICIES}.NAME]")
            return
        for name, keys in section.items():
            self._unused.add(name)
            self._policies[name] = self._check_keys(name, keys, check)

    def _check_keys(self, name: str, keys: object, check: Check) -> tomlfile.Table:
        """The keys of a policy; of a wrong one, keys that cause no further mistakes."""
        before = len(self._errors)
        if not isinstance(keys, dict):
            self._errors.append(f"{self._format_place(name)}: expected a table")
            return _STAND_IN
        for key in _ENTRY_KEYS:
            if key in keys:
                self._errors.append(f"{self._format_place(name)} {key}: belongs in each entry")
        shared = {key: value for key, value in keys.items() if key not in _ENTRY_KEYS}
        check(f"{POLICIES}/{name}", {"title": "-", "meaning": "-", **_STAND_IN, **shared})
        return shared if len(self._errors) == before else _STAND_IN

    def expand_entry(self, code: str, entry: tomlfile.Table) -> tomlfile.Table:
        """The entry with the keys of its policy below its own, or as it is if it names none."""
        if "policy" not in entry:
            return entry
        own = {key: value for key, value in entry.items() if key != "policy"}
        name = entry["policy"]
        if isinstance(name, str) and name in self._policies:
            self._unused.discard(name)
            return {**self._policies[name], **own}
        problem = f"expected a string, found {name!r}"
        if isinstance(name, str):
            hint = tomlfile.suggest_word(name, self._policies)
            problem = f"no policy {name!r} in {self._origin}{hint}"
        place = f"{self._origin}: [{code.replace('/', '.')}]"
        self._errors.append(f"{place} policy: {problem}")
        return {**_STAND_IN, **own}

    def report_unused(self) -> None:
        """Every policy serves an entry: one that none names is misspelt there, or left over."""
        for name in self._policies:
            if name in self._unused:
                self._errors.append(f"{self._format_place(name)}: no entry names this policy")

    def _format_place(self, name: str) -> str:
        return f"{self._origin}: [{POLICIES}.{name}]"
