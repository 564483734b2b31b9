"""The catalogue: rules as data (TOML files in this folder), and the loader that checks them."""

from __future__ import annotations

from vitald.catalog.catalog import Catalog
from vitald.catalog.loader import PROFILES, CatalogError, load_catalog
from vitald.catalog.rules import (
    CLEARS_OF,
    Case,
    Clears,
    Evidence,
    FaultClass,
    Rule,
    Ruling,
)

__all__ = [
    "CLEARS_OF",
    "PROFILES",
    "Case",
    "Catalog",
    "CatalogError",
    "Clears",
    "Evidence",
    "FaultClass",
    "Rule",
    "Ruling",
    "load_catalog",
]
