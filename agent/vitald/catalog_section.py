"""The section of the configuration that selects and changes the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vitald import catalog
from vitald.settings import one_of, read_table, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """What codes mean."""

    profile: str = setting(
        "nvidia",
        one_of(*catalog.PROFILES),
        '"nvidia": NVIDIA\'s published advice. "hyperpod": as observed of SageMaker HyperPod\'s'
        " agent.",
        reload=True,
    )
    overrides: Mapping[str, object] = setting(
        dict,
        read_table,
        "Change or add entries of the catalogue, key by key; or as tables,"
        ' [catalog.overrides."xid/63"].',
        reload=True,
    )
