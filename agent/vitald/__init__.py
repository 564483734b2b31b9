"""vitald: can this node be trusted with work, and if not, what must be done to it?"""

from __future__ import annotations

__version__ = "0.1.0"
