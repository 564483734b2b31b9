"""
Values of labels. Many come from logs, sysfs or tools: whatever these write, a value is one
printable line of limited length, and two different texts stay different.
"""

from __future__ import annotations

import hashlib

from vitald.text import escape_unprintable

MAX_CHARACTERS = 128
_DIGITS = 8  # of the hash that ends a value which was changed


def clean_label(text: str, limit: int = MAX_CHARACTERS) -> str:
    """The text, if it is one printable line of `limit` characters. Else what is not printable is
    escaped, and what is too long is cut; it then ends with `~` and a hash, to stay distinct.
    """
    if len(text) <= limit and text.isprintable():
        return text
    shown = escape_unprintable(text[:limit])
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{shown[: limit - _DIGITS - 1]}~{digest}"
