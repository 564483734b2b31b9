"""`python -m vitald` is the command `vitald`."""

from __future__ import annotations

import sys

from vitald.cli import main

sys.exit(main())
