"""Real answers of the daemon, for tests that need one: those that openapi.json has as examples. They
are recorded by tests/api_examples.py.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, cast

from vitald.server.endpoint import Answer, Body, Endpoint, Post

FILE = Path(__file__).parent / "data/api_examples.json"
# By method and path. A stream's answer is a list of lines.
EXAMPLES: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))


def name_endpoint(endpoint: Endpoint[Any]) -> str:
    return f"{endpoint.method} {endpoint.path}"


def get_answer(endpoint: Endpoint[Answer]) -> Answer:
    """A copy, to be changed at will."""
    return cast("Answer", copy.deepcopy(EXAMPLES[name_endpoint(endpoint)]["answer"]))


def get_request(endpoint: Post[Body, Answer]) -> Body:
    """A copy of what was sent to get that answer."""
    return cast("Body", copy.deepcopy(EXAMPLES[name_endpoint(endpoint)]["request"]))
