"""What several verbs share: how an action on a finding is shown, and how a configuration is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples import get_answer
from vitald.cli import client, main
from vitald.server import endpoints


def test_an_acceptance_says_until_when(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its day: one that ends today is shown by its time alone."""
    finding = get_answer(endpoints.ACCEPT)["finding"]
    accepted = {**finding["accepted"], "until": "2099-01-15T12:00:00Z"}
    answer = {"finding": {**finding, "accepted": accepted}}
    monkeypatch.setattr(client, "post", lambda *_words, **_values: answer)
    assert main(["accept", "1", "--for", "7d", "--reason", "x"]) == 0
    title, until = capsys.readouterr().out.splitlines()
    assert title.startswith("accepted #")
    assert " 2099-01-15 " in until


def test_an_acceptance_that_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {"finding": {**get_answer(endpoints.ACCEPT)["finding"], "accepted": None}}
    monkeypatch.setattr(client, "post", lambda *_words, **_values: ended)
    assert main(["accept", "1", "--end", "--reason", "x"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("no longer accepted #")


@pytest.mark.parametrize("words", ["explain xid/79", "scan /dev/null", "diag read /dev/null"])
def test_every_mistake_of_a_configuration_has_its_line(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[catalog]\nprofile = "x"\n[nothing]\n')
    assert main([*words.split(), "--config", str(config)]) == 78
    mistakes = capsys.readouterr().err.splitlines()
    assert len(mistakes) == 2
    assert all(line.startswith(f"vitald: {config}:") for line in mistakes)
