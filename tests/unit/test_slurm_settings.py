"""`[slurm]` of the configuration file, as Slurm's scripts read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitald import config, config_sections
from vitald.slurm.settings import Settings, read_settings


def test_settings_are_those_of_the_configuration(tmp_path: Path) -> None:
    """Read twice, for speed: keys, defaults and values agree."""
    own = config_sections.SlurmSettings()
    assert {
        name: getattr(Settings(), name)
        for name in Settings._fields
        if name not in ("socket", "config")
    } == {name: getattr(own, name) for name, _ in config.settings_of("slurm").values()}
    path = tmp_path / "config.toml"
    path.write_text(
        '[slurm]\nunknown = "refuse"\nlevel_1_age = "12h"\nbudget = "500ms"\nlevel_2_after_failure'
        f' = false\nreason = "NODE"\nrecord = "{tmp_path}/r"\nhyperpod = true\n[paths]\nruntime = "{tmp_path}"\n'
    )
    read, whole = read_settings(path), config.load(path)
    for name, _ in config.settings_of("slurm").values():
        assert getattr(read, name) == getattr(whole.slurm, name) != getattr(Settings(), name)
    assert read.socket == whole.socket_path
    path.write_text(f'[socket]\npath = "{tmp_path}/s"\n[paths]\nruntime = "/elsewhere"\n')
    assert read_settings(path).socket == config.load(path).socket_path


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
    assert read_settings(path) == Settings(hyperpod="hyperpod = true" in text)
    assert complaint in capsys.readouterr().err
    assert read_settings(tmp_path / "none") == Settings()
