"""
Packages of the npm registry (https://registry.npmjs.org), fetched once into the cache of the tests.

The content is checked against what the registry says of it: `npm view NAME@VERSION dist.integrity`.
Packages are unpacked only; nothing of them is run to install them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.control_plane.build import CACHE
from tests.pace import patient

_FETCH_S = 60.0


class CannotFetch(Exception):
    """The registry cannot be reached. The text says why."""


@dataclass(frozen=True, slots=True)
class NpmPackage:
    """A version of a package. `sha512` in base 64."""

    name: str
    version: str
    sha512: str


def fetch_package(package: NpmPackage) -> Path:
    """The folder with its content. Raises CannotFetch; AssertionError if it is another content."""
    folder = CACHE / f"npm-{package.name.replace('/', '-')}-{package.version}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        scratch = Path(name)
        content = _download(package, scratch)
        digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
        assert digest == package.sha512, f"{package.name} {package.version}: sha512-{digest}"
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            _extract(archive, scratch / "unpacked")
        try:
            (scratch / "unpacked/package").rename(folder)
        except OSError:  # another test was first
            assert folder.is_dir()
    return folder


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """The plain files, below the folder."""
    for member in archive:
        path = (folder / member.name).resolve()
        content = archive.extractfile(member) if member.isfile() else None
        if content is None or not path.is_relative_to(folder.resolve()):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.read())


def _download(package: NpmPackage, folder: Path) -> bytes:
    """By npm where it is, which knows the proxies of this machine."""
    file = f"{package.name.rpartition('/')[2]}-{package.version}.tgz"
    try:
        if shutil.which("npm"):
            command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
            packed = subprocess.run(
                command, cwd=folder, check=True, capture_output=True, timeout=patient(_FETCH_S)
            )
            return (folder / packed.stdout.decode().split()[-1]).read_bytes()
        url = f"https://registry.npmjs.org/{package.name}/-/{file}"
        with urllib.request.urlopen(url, timeout=patient(_FETCH_S)) as answer:
            content: bytes = answer.read()
            return content
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotFetch(f"{package.name} from the npm registry: {error}") from None
