"""
Notices of cloud providers, as `vitald publish` sends and the daemon accepts them: the providers,
what a notice means for the node, and the limits of a request.
"""

from __future__ import annotations

from enum import Enum

MAX_NOTICES = 16  # in a request
MAX_KIND, MAX_ID, MAX_DESCRIPTION = 64, 128, 300  # characters


class Provider(Enum):
    """Whose instance the node is."""

    AWS = "aws"
    AZURE = "azure"
    GCP = "gcp"


class Effect(Enum):
    """What happens to the instance. The members' order is the order of urgency."""

    IMMINENT = "interruption_imminent"
    SCHEDULED = "interruption_scheduled"
    PAUSE = "pause_scheduled"
    REBALANCE = "rebalance_recommended"

    @property
    def code(self) -> str:
        """The code of its finding."""
        return f"cloud/{self.value}"
