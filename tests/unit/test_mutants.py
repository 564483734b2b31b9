"""The small wrong changes that `tests.mutants` makes fit the code as it is."""

from __future__ import annotations

from tests.mutants import CODE, load_mutants


def test_every_change_fits_once() -> None:
    stale = [
        (mutant["file"], mutant["was"])
        for mutant in load_mutants()
        if (CODE / mutant["file"]).read_text().count(mutant["was"]) != 1
    ]
    assert stale == []
