"""Notices of the cloud provider: `/v1/notices`."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from vitald.model.cloud_notice import MAX_DESCRIPTION, MAX_ID, MAX_KIND, MAX_NOTICES
from vitald.server.schema.values import Keywords, Moment


class CloudNotice(TypedDict):
    """One notice of the provider about this instance."""

    effect: Literal[
        "interruption_imminent",
        "interruption_scheduled",
        "pause_scheduled",
        "rebalance_recommended",
    ]
    """What it means: `cloud/EFFECT` is the code of the finding."""
    kind: Annotated[str, Keywords(pattern=f"^[ -~]{{1,{MAX_KIND}}}$", examples=("system-reboot",))]
    """In the provider's word."""
    id: Annotated[str, Keywords(pattern=f"^[ -~]{{0,{MAX_ID}}}$")]
    """The provider's; may be empty."""
    notBefore: Moment | None
    """The earliest time of the interruption; null if the provider does not say."""
    description: Annotated[str, Keywords(max_length=MAX_DESCRIPTION)]
    """In the provider's words, on one line; may be empty."""


class StoreNoticesRequest(TypedDict):
    provider: Literal["aws", "azure", "gcp"]
    """Whose notices these are."""
    notices: Annotated[list[CloudNotice], Keywords(max_items=MAX_NOTICES)]
    """All that stand. The findings of others end."""


class NoticesStored(TypedDict):
    """The notices are taken. The findings are open, or will be within 10 s; those of notices that
    are gone have ended, or will within 10 minutes."""

    ok: Literal[True]
