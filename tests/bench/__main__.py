"""
`python -m tests.bench [NAME ...] [--out FILE]`: one JSON document, figures beside the floor of the
same run.

Without a name all of them run but `soak`, which plays a whole day and takes the better part of an
hour, and `sizing`, which takes twenty minutes.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.bench import (
    backlog,
    check,
    commit,
    diagnostics,
    fleet,
    flood,
    idle,
    judge,
    latency,
    line_cost,
    nvml,
    rounds,
    rules,
    scan,
    scrape,
    sizing,
    soak,
    start,
)
from tests.bench.measure import Json, Skipped, load, machine, scratch, timed

BENCHMARKS: dict[str, Callable[[], Json]] = {
    "latency": latency.run,
    "line_cost": line_cost.run,
    "flood": flood.run,
    "idle": idle.run,
    "scrape": scrape.run,
    "check": check.run,
    "start": start.run,
    "commit": commit.run,
    "judge": judge.run,
    "backlog": backlog.run,
    "scan": scan.run,
    "nvml": nvml.run,
    "rounds": rounds.run,
    "diagnostics": diagnostics.run,
    "fleet": fleet.run,
    "rules": rules.run,
    "sizing": sizing.run,
    "soak": soak.run,
}
BY_NAME_ONLY = {"soak", "sizing"}


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for. Ends with exit code 2 where that cannot be had."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = [name for name in BENCHMARKS if name not in BY_NAME_ONLY]
    which = f"{', '.join(usual)} (default: all of these); {', '.join(sorted(BY_NAME_ONLY))}"
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"which: {which}")
    hours = f"how long soak's day is: {soak.SHORTEST:g} or more (default: %(default)g)"
    parser.add_argument("--hours", type=float, default=soak.HOURS, help=hours)
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        metavar="FILE",
        help="write the document there and not to standard output",
    )
    found = parser.parse_args(arguments)
    if unknown := [name for name in found.names if name not in BENCHMARKS]:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    if not found.hours >= soak.SHORTEST:
        parser.error(f"--hours: {soak.SHORTEST:g} or more")
    found.names = found.names or usual
    return found


def main() -> int:
    arguments = parsed()
    benchmarks = dict(BENCHMARKS)
    benchmarks["soak"] = partial(soak.run, arguments.hours)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # what was changed is put back, what was started is ended
    with scratch() as folder:
        document: Json = {"machine": machine(folder)}
    results: Json = {}
    failed = False
    for name in arguments.names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            seconds, figures = timed(benchmarks[name])
        except Skipped as reason:
            results[name] = {"skipped": str(reason)}
        except Exception as error:  # the other benchmarks still run
            traceback.print_exc()
            results[name], failed = {"error": f"{type(error).__name__}: {error}"}, True
        else:
            results[name] = {**figures, "took_s": round(seconds, 1)}
            failed = failed or bool(figures.get("exceeded"))
    document["benchmarks"] = results
    document["load_at_end"] = load()
    text = json.dumps(document, indent=2)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    else:
        print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
