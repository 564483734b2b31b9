"""`[slurm]` of the configuration file, as Slurm's scripts read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitald.cli.slurm.daemon_client import ScriptSettings, read_settings
from vitald.config.sections import load_config
from vitald.server.settings import find_socket
from vitald.slurm.settings import SLURM, SlurmSettings


def test_settings_are_those_of_the_configuration(tmp_path: Path) -> None:
    """The scripts read the file by themselves; the daemon and root read the whole of it."""
    path = tmp_path / "config.toml"
    path.write_text(
        '[slurm]\nunknown = "refuse"\nlevel_1_age = "12h"\nbudget = "500ms"\nlevel_2_after_failure'
        f' = false\nreason = "NODE"\nrecord = "{tmp_path}/r"\nhyperpod = true\n[paths]\nruntime = "{tmp_path}"\n'
    )
    read, whole = read_settings(path), load_config(path)
    for name, _ in SLURM.list_settings().values():
        value = getattr(whole[SlurmSettings], name)
        assert getattr(read, name) == value != getattr(ScriptSettings(), name)
    assert (read.socket, read.config) == (find_socket(whole), path)
    path.write_text(f'[socket]\npath = "{tmp_path}/s"\n[paths]\nruntime = "/elsewhere"\n')
    assert read_settings(path).socket == find_socket(load_config(path))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[slurm", "not valid TOML"),
        ('[slurm]\nunknown = "perhaps"\nhyperpod = true', "must be one of allow, refuse"),
        ('[slurm]\nbudget = "soon"\nhyperpod = true', "not a duration"),
        ("[slurm]\nhyperpod = true\nreason = 7", "expected a string"),
        ("[slurm]\nhyperpod = true\nrecord = 'r'", "[slurm] record: expected an absolute path"),
        ("slurm = 3", ""),
    ],
)
def test_what_is_wrong_in_the_file_is_said(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that is wrong costs no other key."""
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert read_settings(path) == ScriptSettings(hyperpod="hyperpod = true" in text, config=path)
    assert complaint in capsys.readouterr().err
    assert read_settings(tmp_path / "none") == ScriptSettings(config=tmp_path / "none")
