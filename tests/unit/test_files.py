"""Small files of the kernel: what a value is, and how it is said that there is none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitald import small_files
from vitald.collectors.raw_readings import Files, RawReadings


def test_numbers_and_texts(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("12")  # some drivers forget the newline
    (tmp_path / "b").write_text("0x1d0f\n")
    (tmp_path / "c").write_text("4: ACTIVE\n")
    look, reader = RawReadings(), Files()
    assert reader.read_number(look, "a", tmp_path / "a") == 12.0
    assert reader.read_number(look, "b", tmp_path / "b") == 0x1D0F
    assert reader.read_text(look, "c", tmp_path / "c") == "4: ACTIVE"
    assert look.values == {"a": 12.0, "b": 7439.0, "c": "4: ACTIVE"}


def test_what_is_no_value_is_said_and_noted_nowhere(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "words").write_text("N/A (no PMA)\n")
    (tmp_path / "folder").mkdir()
    look, reader = RawReadings(), Files()
    for name in ("empty", "words", "folder", "gone"):
        assert reader.read_number(look, name, tmp_path / name) is None
    assert look.values == {}
    assert look.missing == {
        "empty": "the file is empty",
        "words": "reads 'N/A (no PMA)', which is no value",
        "folder": "Is a directory (EISDIR)",
        "gone": "there is no such file",
    }


def test_a_file_that_answers_einval_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(path: object) -> str:
        asked.append(path)
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(small_files, "read_attribute", refuse)
    reader = Files()
    for _ in range(3):
        look = RawReadings()
        assert reader.read_number(look, "counter", tmp_path / "counter") is None
        assert "EINVAL" in look.missing["counter"]
    assert len(asked) == 1


@given(st.binary(max_size=200))
def test_whatever_a_file_holds_is_a_number_or_a_reason(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "file"
    path.write_bytes(content)
    look = RawReadings()
    value = Files().read_number(look, "x", path)
    assert (value is None) == ("x" in look.missing)
    assert (value is not None) == ("x" in look.values)


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "huge").write_bytes(b"1" * 1_000_000)
    assert len(small_files.read_text(tmp_path / "huge")) < 200_000
