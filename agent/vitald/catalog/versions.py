"""
Versions of software and firmware, how they compare, and the published minimum of each branch.

A version is its numbers, then whether it is a release candidate or the like. What follows, such as
`-generic` or a distribution's suffix, does not count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import total_ordering

_VERSION = re.compile(
    r"v?(\d{1,12}(?:[.\-]\d{1,12}){0,11})(?:[-~.](alpha|beta|rc)[.\-]?(\d{1,9})?)?(.*)", re.DOTALL
)
_STAGES = {"alpha": 0, "beta": 1, "rc": 2, None: 3}


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """Compared by `numbers`, of which missing ones are 0, then by `stage`: a release is last.
    `rest` is what follows.
    """

    numbers: tuple[int, ...]
    stage: tuple[int, int] = (_STAGES[None], 0)
    rest: str = field(default="", compare=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __lt__(self, other: Version) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[tuple[int, ...], tuple[int, int]]:
        significant = len(self.numbers)
        while significant and not self.numbers[significant - 1]:
            significant -= 1
        return self.numbers[:significant], self.stage

    def starts_with(self, branch: Version) -> bool:
        return self.numbers[: len(branch.numbers)] == branch.numbers


def parse_version(text: str) -> Version:
    """`1.4.0-rc.3`, `580.159.03`, `6.8.0-124-generic`. Raises ValueError if it begins with no
    number.
    """
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a version such as 1.2.8")
    numbers = tuple(int(number) for number in re.split(r"[.\-]", found[1]))
    return Version(numbers, (_STAGES[found[2]], int(found[3] or 0)), found[4])


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumVersions:
    """The published minimum of each maintained branch, by the numbers that its versions begin with.

    `earlier`: the sources call every other branch below the newest one affected, too; else nothing
    is known of those. `upstream_only`: distributions fix it under numbers of their own. `family`:
    the first number is that of the device; a branch is named by it, or by the numbers after it.
    """

    branches: Mapping[str, str]
    dated: str
    source: str
    earlier: bool = False
    upstream_only: bool = False
    family: bool = False

    def find_minimum(self, version: Version) -> str:
        """The minimum that applies to a version; empty if none is known.

        That of its branch; else, for a version below the newest branch, the next higher one where
        `earlier` says so; else the highest.
        """
        if self.family and self._find_branch(version) is None:
            found = self._find_minimum(Version(version.numbers[1:]))
            return f"{version.numbers[0]}.{found}" if found else ""
        return self._find_minimum(version)

    def _find_branch(self, version: Version) -> str | None:
        branches = (
            branch for branch in self.branches if version.starts_with(parse_version(branch))
        )
        return next(branches, None)

    def _find_minimum(self, version: Version) -> str:
        branch = self._find_branch(version)
        if branch is not None:
            return self.branches[branch]
        minimums = {text: parse_version(text) for text in self.branches.values()}
        higher = [text for text, minimum in minimums.items() if minimum > version]
        if not higher:
            return max(minimums, key=lambda text: minimums[text])
        return min(higher, key=lambda text: minimums[text]) if self.earlier else ""
