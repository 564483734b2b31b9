"""What differs between two configurations, and what a changed key needs to take effect."""

from __future__ import annotations

from dataclasses import replace

from vitald.config.section import TakesEffect
from vitald.config.sections import GROUPS, SECTIONS
from vitald.config.values import Config


def merge_reloaded(old: Config, new: Config) -> Config:
    """What is in force after a reload: `new`, except for what needs a restart."""
    merged = []
    for section in SECTIONS.values():
        before, after = old[section.settings], new[section.settings]
        kept = {
            attribute: getattr(before, attribute)
            for key, (attribute, _) in section.list_settings().items()
            if section.find_effect(key) is TakesEffect.RESTART
        }
        merged.append(replace(after, **kept))
    return new.replace(*merged)


def compare_configs(old: Config, new: Config) -> dict[TakesEffect, list[str]]:
    """The keys that differ, such as `[metrics] listen`, by what makes them take effect."""
    changes: dict[TakesEffect, list[str]] = {effect: [] for effect in TakesEffect}
    for name, section in SECTIONS.items():
        before, after = old[section.settings], new[section.settings]
        for key, (attribute, _) in section.list_settings().items():
            if getattr(before, attribute) != getattr(after, attribute):
                changes[section.find_effect(key)].append(f"[{name}] {key}")
    for name, group in GROUPS.items():
        before, after = old.get_group(group.settings), new.get_group(group.settings)
        changes[group.effect] += [
            f"[{name}.{member}]"
            for member in sorted(before.keys() | after.keys())
            if before.get(member) != after.get(member)
        ]
    return changes
