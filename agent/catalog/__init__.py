"""What codes mean: rules as data (the TOML files beside this one), and the loader that checks them."""

from __future__ import annotations

from agent.catalog.loader import PROFILES, CatalogError, load
from agent.catalog.rules import Case, Catalog, Clears, FaultClass, Rule, Ruling

__all__ = ["PROFILES", "Case", "Catalog", "CatalogError", "Clears", "FaultClass", "Rule", "Ruling", "load"]
