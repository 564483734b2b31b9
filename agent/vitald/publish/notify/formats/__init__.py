"""The forms in which a notification can be sent, by their names in the configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vitald.publish.notify.formats import cloudevents, pagerduty, slack, vitald
from vitald.publish.notify.notification import Notification


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a notification becomes the body of a request. `has_routing_key`: the sender adds the key
    `routing_key`, which is a secret.
    """

    build: Callable[[Notification], dict[str, object]]
    content_type: str = "application/json"
    has_routing_key: bool = False


FORMATS: Mapping[str, Format] = {
    "vitald": Format(build=vitald.build_body),
    "cloudevents": Format(build=cloudevents.build_body, content_type=cloudevents.CONTENT_TYPE),
    "slack": Format(build=slack.build_body),
    "pagerduty": Format(build=pagerduty.build_body, has_routing_key=True),
}


def encode_json(document: object) -> bytes:
    """Compact and in ASCII: what is not is escaped."""
    return json.dumps(document, separators=(",", ":")).encode("ascii")
