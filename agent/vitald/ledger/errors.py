"""
Errors of the ledger. The text of each names the file and the reason.
"""

from __future__ import annotations

from pathlib import Path

import vitald.ledger.schema as schema
from vitald import __version__


class LedgerError(Exception):
    """The ledger cannot be read or written."""


class LedgerDamaged(LedgerError):
    """The file is not a valid database, or not the file that was opened."""


class LedgerNewer(LedgerError):
    """A later version wrote the file. It is left unchanged."""


def refuse_newer(path: Path, version: int) -> None:
    """Raises LedgerNewer if `version` of the schema is later than this program's.

    A program that does not know all tables would judge by a part of them.
    """
    if version > schema.VERSION:
        raise LedgerNewer(
            f"{path}: written by a newer vitald: its schema is {version}, and vitald {__version__}"
            f" knows {schema.VERSION}. The file is left as it is. Install the newer"
            " vitald again, or move the file away to begin a new ledger"
        )
