"""Options for verbs that read the configuration file themselves, and the catalogue that it
selects.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vitald.cli import EX_CONFIG, CommandFailed, argument_types

if TYPE_CHECKING:
    from vitald.catalog import Catalog
    from vitald.config.values import Config


class ConfigRejected(CommandFailed):
    """The configuration or the catalogue is wrong. Every mistake has a line of its own."""

    exit_code = EX_CONFIG

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\nvitald: ".join(errors))


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """--config, for a verb that acts as the configured daemon does."""
    from vitald.config.file import DEFAULT_PATH

    parser.add_argument(
        "--config",
        type=Path,
        default=DEFAULT_PATH,
        metavar="FILE",
        help=f"the daemon's configuration (default: {DEFAULT_PATH})",
    )


def add_catalog_options(parser: argparse.ArgumentParser, *, config: str, profile: str) -> None:
    """--config and --profile, for a verb that needs no daemon. `config` and `profile` are their
    help.
    """
    parser.add_argument("--config", type=Path, default=None, help=config)
    parser.add_argument(
        "--profile", type=argument_types.parse_profile, metavar="NAME", default=None, help=profile
    )


def load_catalog(path: Path | None, profile: str | None) -> tuple[Config, Catalog]:
    """A file's configuration, and the catalogue by it or by another profile. None: the defaults.
    Raises ConfigRejected.
    """
    from vitald.catalog import CatalogError
    from vitald.catalog.settings import load_configured_catalog
    from vitald.config.errors import ConfigError
    from vitald.config.sections import load_config

    try:
        config = load_config(path)
        catalog = load_configured_catalog(config, profile)
    except (ConfigError, CatalogError) as error:
        raise ConfigRejected(error.errors) from None
    return config, catalog
