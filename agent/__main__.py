"""`python -m agent` is the command `vitald`."""

from __future__ import annotations

import sys

from agent.cli import main

sys.exit(main())
