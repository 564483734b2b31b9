"""
Patterns of kernel lines in an entry's `match`: their macros, and the fixed letters that index them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

HEAD = 3  # number of fixed first letters in the index

# Not hardware of the node: an image, a network block device, a memory disk, removable media.
_IMAGE = r"(?:loop|rbd|nbd|drbd|zram|ram|sr|fd)\d{1,5}(?:p\d{1,3})?"
# Text of a driver: on one line, without the characters of crash reports, packet logs (`[`, `=`) and
# quoted user input.
_WORDS = r"[\w ,.:;()/'+#%<>!&*@\-]{0,200}"
_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_DRIVER = r"(?P<driver>[A-Za-z0-9_][A-Za-z0-9_\-]{0,31})"
MACROS = {
    "{bdf}": rf"(?P<pci>{_ADDRESS})",
    # What dev_err and netdev_err print before the message; kernels up to 4.x with one more colon
    "{netdev}": (
        rf"(?P<pci>{_ADDRESS}):?"
        r"(?: (?P<port>[\w.\-]{1,32})| \(unnamed net_device\)(?: \(uninitialized\))?)?:"
    ),
    "{blamed}": rf"(?P<blamed>{_ADDRESS})",
    "{driver}": _DRIVER,
    "{device}": r"(?P<device>[A-Za-z0-9_.\-]{1,64})",
    # The kernel writes the / of a disk's name as !: pxd!pxd208
    "{disk}": rf"(?P<device>(?!{_IMAGE}(?!\w))[A-Za-z0-9_.!\-]{{1,64}})",
    "{image}": rf"(?P<device>{_IMAGE})",
    # jbd2 names a journal after its device and its inode: `dm-0-8`, `nvme0n1p1-8`; a journal on a
    # device of its own has no inode.
    "{journal}": (
        rf"(?P<device>(?!{_IMAGE}(?!\w))(?:dm-\d{{1,5}}|[A-Za-z0-9_!]{{1,64}}?))(?:-\d{{1,9}})?"
    ),
    # What EDAC prints of an error after `1 CE ` or `1 UE `; a label has no parentheses, and comes
    # after the first `on`.
    "{memory}": (
        r"(?:(?!on )[^\s\[\]]{1,64} ){0,32}on (?P<label>[^()\[\]]{1,256}) \([\w"
        r" :.#/\-]{0,160}?page:0x[0-9a-f]{1,16} offset:0x[0-9a-f]{1,16} grain:\d{1,12}"
        r"(?: syndrome:0x[0-9a-f]{1,16})?(?: - (?:[\w :.,;()/#+\-]|\[[0-9a-f"
        r" ]{1,400}\]){0,900})?\)\s*\Z"
    ),
    "{words}": _WORDS,
    "{pid}": r"(?P<pid>\d{1,10})",
}


def expand_macros(pattern: str) -> str:
    """The regular expression of a `match`, with its macros expanded."""
    for macro, expansion in MACROS.items():
        pattern = pattern.replace(macro, expansion)
    return pattern


def begins_with_driver(pattern: str) -> bool:
    """Whether the pattern begins with any driver's name, `{driver} {bdf}`."""
    return pattern.startswith(_DRIVER)


def first_letters(starts: Iterable[str], pattern: str) -> list[bytes]:
    """The possible first letters of a line: those in `starts`, else those of the expression; empty
    if neither has any.
    """
    return [start[:HEAD].encode() for start in starts] or list(_literal_head(pattern))


@cache
def _literal_head(pattern: str) -> tuple[bytes, ...]:
    """The fixed first letters of a regular expression; empty if it has none."""
    head = ""
    position = 0
    while position < len(pattern) and len(head) < HEAD:
        char = pattern[position]
        if char == "\\" and position + 1 < len(pattern) and not pattern[position + 1].isalnum():
            char, position = pattern[position + 1], position + 1
        elif char in "\\[](){}?*+|^$.":
            break
        if position + 1 < len(pattern) and pattern[position + 1] in "?*{":
            break
        head += char
        position += 1
    return (head.encode(),) if len(head) == HEAD and "|" not in _top_level(pattern) else ()


def _top_level(pattern: str) -> str:
    """The pattern without its groups and character classes."""
    depth, outside, skip, bracket = 0, "", False, False
    for char in pattern:
        if skip:
            skip = False
        elif char == "\\":
            skip = True
        elif bracket:
            bracket = char != "]"
        elif char == "[":
            bracket = True
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif depth == 0:
            outside += char
    return outside
