"""
One rank of a real PyTorch run: DistributedDataParallel with gloo on the CPU, and `vitald_job` as
docs/jobs-client.md says. Needs torch; imports nothing of the daemon.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python tests/torch_program.py FOLDER

SIGUSR1 makes the next loss NaN. Each step is a line in FOLDER/rank0; a checkpoint is a file there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packaging/job"))
from vitald_job import job

spoilt = []


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    signal.signal(signal.SIGUSR1, lambda *_: spoilt.append(True))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    job.start()
    advised = False
    with (folder / f"rank{rank}").open("w") as printed:
        for step in range(1_000_000):
            loss = model(torch.ones(32, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            value = loss.item()
            if spoilt:
                spoilt.clear()
                value = float("nan")
            job.step(step, loss=value)
            print(step, file=printed, flush=True)
            time.sleep(0.01)  # a step as long as one on GPUs
            if step % 20:
                continue
            advised, was_advised = agree(job.save_advised), advised
            if advised and not was_advised:
                with job.checkpoint(step, tier="global") as checkpoint:
                    path = folder / f"checkpoint{step}.{rank}"
                    torch.save(model.state_dict(), path)
                    checkpoint.bytes = path.stat().st_size


def agree(advised: bool) -> bool:
    """Whether any rank is advised to save: then all do, at the same step."""
    flag = torch.tensor([float(advised)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


main()
