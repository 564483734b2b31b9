"""`[log]` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from vitald.config.readers import one_of
from vitald.config.section import Section, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The log of vitald's services, on standard error."""

    level: str = setting(
        "info",
        one_of("debug", "info", "warning", "error"),
        "debug, info, warning or error.",
        reload=True,
    )
    format: str = setting("text", one_of("text", "json"), "A readable line each, or a JSON object.")


LOG = Section(name="log", settings=LogSettings)
