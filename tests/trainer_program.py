"""
A training program of one of the frameworks in docs/jobs-client.md, with the hook exactly as it is
printed there. Needs torch and the framework; imports nothing of the daemon.

    torchrun --nproc-per-node 2 tests/trainer_program.py plain|transformers FOLDER
    python tests/trainer_program.py lightning FOLDER

It runs until FOLDER/stop exists; FOLDER/nan makes the loss NaN.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "packaging/job"))
FRAMEWORK, FOLDER = sys.argv[1], Path(sys.argv[2])
_BLOCK = re.compile(r"^ *```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SIZE = 16


def read_block(words: str) -> str:
    """The code block of the manual that contains the words."""
    text = (ROOT / "docs/jobs-client.md").read_text()
    blocks = (textwrap.dedent(code) for code in _BLOCK.findall(text))
    (found,) = (code for code in blocks if words in code)
    return found


def load_hook(words: str) -> dict[str, Any]:
    """What the manual's block defines, beside its `agree`."""
    names: dict[str, Any] = {"torch": torch, "device": "cpu"}
    exec(read_block("def agree"), names)
    exec(read_block(words), names)
    return names


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(0.01 if self.training else 1.0)  # as long as on GPUs
        loss = self.layer(x).square().mean()
        return {"loss": loss * float("nan") if (FOLDER / "nan").exists() else loss}


class Data(torch.utils.data.Dataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.ones(SIZE)}


def is_stopped() -> bool:
    """Whether the program is to end: rank 0 decides for all."""
    flag = torch.tensor([int((FOLDER / "stop").exists())])
    dist.broadcast(flag, 0)
    return bool(flag.item())


def train_plain() -> None:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    rank = dist.get_rank()
    backward = read_block("job.mark_collective()\nloss.backward()")

    def train_step(batch: torch.Tensor) -> float:
        loss = model(batch)["loss"]
        exec(backward, {"job": names["job"], "loss": loss})
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    def load() -> Any:
        while not is_stopped():
            yield torch.ones(4, SIZE)

    def save(step: int) -> int:
        path = FOLDER / f"checkpoint-{step}.{rank}"
        torch.save(model.state_dict(), path)
        return path.stat().st_size

    names: dict[str, Any] = {"torch": torch, "device": "cpu"}
    exec(read_block("def agree"), names)
    names.update(train_step=train_step, loader=load(), save=save)
    exec(read_block("for step, batch in enumerate(loader)"), names)


def train_transformers() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Control(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = is_stopped()

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = is_stopped()

    arguments = TrainingArguments(
        output_dir=str(FOLDER / "out"),
        use_cpu=True,
        max_steps=1_000_000,
        logging_steps=5,
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=50,
        report_to=[],
        disable_tqdm=True,
    )
    hook = load_hook("VitaldCallback(TrainerCallback)")["VitaldCallback"]()
    trainer = Trainer(
        Model(),
        arguments,
        train_dataset=Data(1_000_000),
        eval_dataset=Data(16),
        callbacks=[hook, Control()],
    )
    trainer.train()


def train_lightning() -> None:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.model(batch["x"])["loss"]  # type: ignore[no-any-return]

        def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
            self.model(batch["x"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    class Control(Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = is_stopped()

    os.chdir(FOLDER)  # where its checkpoints go
    hook = load_hook("VitaldCallback(Callback)")["VitaldCallback"]()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=1_000_000,
        val_check_interval=50,
        log_every_n_steps=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[hook, Control()],
    )
    loaders = [torch.utils.data.DataLoader(Data(length)) for length in (1_000_000, 8)]
    trainer.fit(Module(), *loaders)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"plain": train_plain, "transformers": train_transformers, "lightning": train_lightning}[
        FRAMEWORK
    ]()
