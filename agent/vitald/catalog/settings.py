"""`[catalog]` of the configuration, which selects and changes the catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitald import catalog
from vitald.config.errors import FileReport
from vitald.config.readers import one_of, read_table
from vitald.config.section import Section, TakesEffect, setting
from vitald.config.values import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """What codes mean."""

    profile: str = setting(
        "nvidia",
        one_of(*catalog.PROFILES),
        '"nvidia": NVIDIA\'s published advice. "hyperpod": as observed of SageMaker HyperPod\'s'
        " agent.",
    )
    overrides: Mapping[str, object] = setting(
        dict,
        read_table,
        "Change or add entries of the catalogue, key by key; or as tables,"
        ' [catalog.overrides."xid/63"].',
    )


def load_configured_catalog(
    config: Config, profile: str | None = None, extra: Path | None = None
) -> catalog.Catalog:
    """The catalogue that the configuration selects and changes, or one of another `profile`, with
    the entries of an `extra` file. Raises CatalogError.
    """
    settings = config[CatalogSettings]
    return catalog.load_catalog(profile or settings.profile, settings.overrides, extra=extra)


def _check_overrides(config: Config, report: FileReport) -> None:
    settings = config[CatalogSettings]
    if settings == CatalogSettings():
        return
    try:
        load_configured_catalog(config)
    except catalog.CatalogError as error:
        for mistake in error.errors:
            report.add_error_at(_find_override(mistake, settings.overrides), mistake)


# `[catalog.overrides]: [xid.79] action: ...`, as the catalogue reports a mistake
_OVERRIDE = re.compile(r"\[catalog\.overrides\]: \[(\w+)\.([^\]]*)\](?: (\w+))?")


def _find_override(mistake: str, overrides: Mapping[str, object]) -> tuple[str, ...]:
    """The path in the file of what a mistake of the catalogue is about."""
    if (found := _OVERRIDE.match(mistake)) is None:
        return ("catalog", "overrides")
    kind, name, key = found.groups(default="")
    code = f"{kind}/{name}"
    return ("catalog", "overrides", *([code] if code in overrides else [kind, name]), key)


CATALOG = Section(
    name="catalog",
    settings=CatalogSettings,
    effect=TakesEffect.RELOAD,
    examples={"overrides": '#overrides."xid/63".action = "reboot_node"'},
    check=_check_overrides,
)
