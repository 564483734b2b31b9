"""
The checks, one module each. A new check is one module here with `build_check(config) -> Check`;
nothing else changes.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import cast

from vitald.config.values import Config
from vitald.diagnostics.check import Check


def build_checks(config: Config) -> dict[str, Check]:
    """All checks by name, sorted, whether or not their programs are installed."""
    modules = (
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    )
    checks = [cast("Callable[[Config], Check]", module.build_check)(config) for module in modules]
    return {check.name: check for check in sorted(checks, key=lambda check: check.name)}
