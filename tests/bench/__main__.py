"""`python -m tests.bench [NAME ...] [--out FILE]`: one JSON document, figures beside the floor of the same run."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.bench import check, commit, diagnostics, flood, idle, judge, latency, line_cost, nvml, rounds, scrape, start
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
    "nvml": nvml.run,
    "rounds": rounds.run,
    "diagnostics": diagnostics.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"which: {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE", help="write the document there and not to standard output")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in BENCHMARKS]:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was changed is put back, what was started is ended
    with scratch() as folder:
        document: Json = {"machine": machine(folder)}
    results: Json = {}
    failed = False
    for name in arguments.names or BENCHMARKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            seconds, figures = timed(BENCHMARKS[name])
        except Skipped as reason:
            results[name] = {"skipped": str(reason)}
        except Exception as error:  # the other benchmarks still run
            traceback.print_exc()
            results[name], failed = {"error": f"{type(error).__name__}: {error}"}, True
        else:
            results[name] = {**figures, "took_s": round(seconds, 1)}
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
