"""A library in place of libcuda and libcublas (libcuda.c), and what it answers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.conftest import require

SOURCE = Path(__file__).with_name("libcuda.c")
ADDRESSES = tuple(f"0000:{bus}:00.0" for bus in ("19", "3b", "4c", "5d", "9b", "ab", "bb", "cb"))


class SimulatedCuda:
    """The libraries in a folder, found by `environment`, and the file from which they answer."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        require(compiler, "a C compiler")
        folder.mkdir(exist_ok=True)
        self.state, built = folder / "answers", folder / "libcuda.so.1"
        subprocess.run(
            [str(compiler), "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", built, SOURCE],
            check=True,
        )
        self.library = folder / "libcublas.so.13"
        for path in (self.library, folder / "libcublasLt.so.13"):
            path.symlink_to(built)
        self.environment = {
            "SIMULATED_CUDA": str(self.state),
            "LD_LIBRARY_PATH": str(folder),
        }
        self.answer()

    def answer(self, *lines: str, gpus: int = 4) -> None:
        """Lines that libcuda.c explains."""
        spare = self.state.with_suffix(".new")
        spare.write_text("".join(f"{line}\n" for line in (f"gpus {gpus}", *lines)))
        spare.replace(self.state)
