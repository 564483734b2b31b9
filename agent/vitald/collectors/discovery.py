"""
Finds the collectors: each is a package beside this module.

`settings.py` of a package has SECTION, its section of the configuration; the configuration reads
these without loading a collector's code. `collector.py` has COLLECTOR, its definition. The kernel
log has none: the registry builds it, since its lines are matched with what others read.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from vitald import collectors
from vitald.config.section import Section

if TYPE_CHECKING:
    from vitald.collectors.definition import CollectorDefinition


@cache
def find_packages() -> tuple[str, ...]:
    """Names of the collectors' packages, sorted."""
    return tuple(sorted(found.name for found in iter_modules(collectors.__path__) if found.ispkg))


@cache
def find_sections() -> tuple[Section, ...]:
    """The sections of the configuration that belong to collectors, in the file's order."""
    sections = [
        import_module(f"{collectors.__name__}.{package}.settings").SECTION
        for package in find_packages()
    ]
    return tuple(sorted(sections, key=lambda section: section.order))


def find_switched() -> tuple[str, ...]:
    """Names of the collectors' sections that can be switched off, in the file's order."""
    return tuple(
        section.name for section in find_sections() if "enabled" in section.list_settings()
    )


@cache
def find_collectors() -> tuple[CollectorDefinition, ...]:
    """The definitions of all collectors, in the order of their sections. Loads their code."""
    modules = [f"{collectors.__name__}.{package}.collector" for package in find_packages()]
    found: list[CollectorDefinition] = [
        import_module(module).COLLECTOR for module in modules if find_spec(module) is not None
    ]
    return tuple(sorted(found, key=lambda definition: definition.section.order))
