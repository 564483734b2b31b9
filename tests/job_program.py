"""
A rank of a job, as a training program is: it uses `vitald_job`, makes steps, and saves when the
node advises it.

    python -m tests.job_program SOCKET RANK

Prints each step. SIGUSR1: the loss is not finite from now on.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time

from tests.job_server import load_client

client = load_client()
client._RETRY_S = 0.2  # a restarted daemon is found at once
is_bad = False


def break_loss(*_: object) -> None:
    global is_bad
    is_bad = True


def main() -> None:
    job = client.job
    signal.signal(signal.SIGUSR1, break_loss)
    job.start(path=sys.argv[1], rank=int(sys.argv[2]), world=2, job="1234", step_limit=2.0)
    was_advised = False
    for step in itertools.count():
        job.step(step, loss=float("nan") if is_bad else 1.0 / (step + 1))
        print(step, flush=True)
        is_advised = job.save_advised
        if is_advised and not was_advised:
            with job.checkpoint(step) as saved:
                saved.bytes = 4096
        was_advised = is_advised
        time.sleep(0.02)


if __name__ == "__main__":
    main()
