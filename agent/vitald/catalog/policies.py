"""
Policies: keys that many entries of one file have in common, written once under a name.

    [policies.reset-fabric]             [sxid.10003]
    action = "reset_device"             policy = "reset-fabric"

A policy is known to the entries of its own file. An entry's own key replaces the policy's as a
whole: of lists and tables, nothing of the policy's is left.
"""

from __future__ import annotations

from collections.abc import Callable

from vitald import tomlfile

SECTION = "policies"
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
        section = tables.get(SECTION, {})
        if not isinstance(section, dict):
            errors.append(f"{origin}: [{SECTION}]: expected tables such as [{SECTION}.NAME]")
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
        check(f"{SECTION}/{name}", {"title": "-", "meaning": "-", **_STAND_IN, **shared})
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
        return f"{self._origin}: [{SECTION}.{name}]"
