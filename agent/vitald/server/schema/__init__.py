"""
The contract of the API: requests and answers as types. With the endpoints, `openapi.json` is
generated from them (`python -m tests.openapi`), and the daemon and the command line are
type-checked against them.

A type whose name begins with an underscore is written out where it is used; any other is a schema
of its own. The string below a key is its description. Only type checkers and that tool import this
package: building the types would slow down the start of `vitald check`.
"""

from __future__ import annotations

from vitald.server.schema.answers import *
from vitald.server.schema.components import *
from vitald.server.schema.diagnostics import *
from vitald.server.schema.events import *
from vitald.server.schema.findings import *
from vitald.server.schema.jobs import *
from vitald.server.schema.node import *
from vitald.server.schema.value_types import *
