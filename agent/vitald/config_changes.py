"""What differs between two configurations, and what a changed key needs to take effect."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from vitald.config import GROUPS, SECTIONS, Config, settings_of


class TakesEffect(Enum):
    """What makes a changed key take effect."""

    AT_ONCE = "at once"
    RELOAD = "reload"
    RESTART = "restart"
    PUBLISHER = "restart of vitald-publish"


# Sections that other programs read: the scripts for Slurm each time, `vitald publish` at its start.
_READ_BY_OTHERS = {
    "slurm": TakesEffect.AT_ONCE,
    "publish": TakesEffect.PUBLISHER,
    "kubernetes": TakesEffect.PUBLISHER,
    "notify": TakesEffect.PUBLISHER,
}
_DAEMONS_OWN = {("publish", "user")}


def find_effect(section: str, key: str) -> TakesEffect:
    """When a changed key takes effect."""
    if section in _READ_BY_OTHERS and (section, key) not in _DAEMONS_OWN:
        return _READ_BY_OTHERS[section]
    if section in GROUPS:
        return TakesEffect.RELOAD
    return TakesEffect.RELOAD if settings_of(section)[key][1].reload else TakesEffect.RESTART


def merge_reloaded(old: Config, new: Config) -> Config:
    """What is in force after a reload: `new`, except for what needs a restart."""
    merged = old
    for section in SECTIONS:
        values = {
            attribute: getattr(new.get_section(section), attribute)
            for key, (attribute, _) in settings_of(section).items()
            if find_effect(section, key) is not TakesEffect.RESTART
        }
        merged = merged.replace_section(section, replace(old.get_section(section), **values))
    for group in GROUPS:
        merged = merged.replace_section(group, new.get_section(group))
    return replace(merged, settings_hash=new.settings_hash)


def compare_configs(old: Config, new: Config) -> dict[TakesEffect, list[str]]:
    """The keys that differ, such as `[metrics] listen`, by what makes them take effect."""
    changes: dict[TakesEffect, list[str]] = {effect: [] for effect in TakesEffect}
    for section in SECTIONS:
        for key, (attribute, _) in settings_of(section).items():
            before = getattr(old.get_section(section), attribute)
            if before != getattr(new.get_section(section), attribute):
                changes[find_effect(section, key)].append(f"[{section}] {key}")
    for group in GROUPS:
        before, after = old.get_section(group), new.get_section(group)
        changes[find_effect(group, "")] += [
            f"[{group}.{name}]"
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        ]
    return changes
