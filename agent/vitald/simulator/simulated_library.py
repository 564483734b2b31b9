"""
Compiles the simulated library on first use and keeps it in a cache, by a digest of its source. It
is never shipped built.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
SONAME = "libnvidia-ml.so.1"
FLAGS = (
    "-O2",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    f"-Wl,-soname,{SONAME}",
    "-pthread",
)
_MAX_COMPILE_S = 120.0
_MAX_ERRORS = 5


class CannotBuild(Exception):
    """There is no library; the text says why, for a person."""


def build_library(cache: Path | None = None) -> Path:
    """The simulated library, compiled unless the cache has it already. Raises CannotBuild."""
    compilers = (shutil.which(name) for name in ("cc", "gcc", "clang"))
    compiler = next(filter(None, compilers), None)
    if compiler is None:
        raise CannotBuild(
            "the simulated NVML is compiled on first use, and no C compiler is installed (cc, gcc"
            " or clang): apt-get install gcc libc6-dev (Debian, Ubuntu) or dnf install gcc (RHEL,"
            " Fedora, Amazon Linux)"
        )
    try:
        source = SOURCE.read_bytes()
    except OSError as error:
        raise CannotBuild(f"{SOURCE}: cannot be read: {error.strerror}") from None
    name = f"nvml-{hashlib.sha256(source + os.fsencode(compiler)).hexdigest()[:16]}"
    folders = [cache] if cache is not None else _list_cache_folders()
    for folder in folders:
        if (folder / name / SONAME).is_file():
            return folder / name / SONAME
    for folder in folders:
        if _is_writable(folder / name):
            return _compile_library(compiler, folder / name)
    if cache is not None:
        raise CannotBuild(f"{cache}: cannot be written")
    return _compile_library(compiler, _make_private_folder(name))


def _list_cache_folders() -> list[Path]:
    """The user's cache folder, if there is one."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if chosen.startswith("/"):
        return [Path(chosen) / "vitald"]
    try:
        return [Path.home() / ".cache" / "vitald"]
    except RuntimeError:  # no HOME, and no entry in passwd
        return []


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _make_private_folder(name: str) -> Path:
    """A folder below the temporary one that no other user can have written to: the library in it
    is loaded.
    """
    root = Path(tempfile.gettempdir()) / f"vitald-{os.geteuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
        if (
            not stat.S_ISDIR(found.st_mode)
            or found.st_uid != os.geteuid()
            or stat.S_IMODE(found.st_mode) & 0o077
        ):
            raise CannotBuild(
                f"{root}: must be a folder that only this user can enter; remove it, or set"
                " XDG_CACHE_HOME"
            )
        (root / name).mkdir(exist_ok=True)
    except OSError as error:
        raise CannotBuild(
            f"{root}: cannot be written: {error.strerror}; set XDG_CACHE_HOME to a folder that can"
        ) from None
    return root / name


def _compile_library(compiler: str, folder: Path) -> Path:
    """Compiles under another name first, so that a process that opens it at the same time finds
    a whole library or none.
    """
    target = folder / SONAME
    if target.is_file():
        return target
    try:
        number, name = tempfile.mkstemp(dir=folder, prefix="building-")
        os.close(number)
    except OSError as error:
        raise CannotBuild(f"{folder}: cannot be written: {error.strerror}") from None
    made = Path(name)
    try:
        command = [compiler, *FLAGS, "-o", str(made), str(SOURCE)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_MAX_COMPILE_S
        )
        if done.returncode:
            raise CannotBuild(
                f"{compiler} could not compile {SOURCE}:\n{_select_errors(done.stderr)}"
            )
        made.chmod(0o755)
        made.replace(target)
    except subprocess.TimeoutExpired:
        raise CannotBuild(
            f"{compiler} did not compile {SOURCE} within {_MAX_COMPILE_S:.0f} s"
        ) from None
    except OSError as error:
        raise CannotBuild(f"{compiler} could not compile {SOURCE}: {error.strerror}") from None
    finally:
        made.unlink(missing_ok=True)
    return target


def _select_errors(text: str) -> str:
    """The compiler's first errors, or its first lines if none has the word."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line]
    return "\n".join((errors or lines)[:_MAX_ERRORS]) or "no output"
