"""[notify.NAME]: what is read, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from vitald import tomlfile
from vitald.config.errors import ConfigError
from vitald.config.section import TakesEffect
from vitald.config.sections import parse_config
from vitald.config.values import Config
from vitald.core.config_reload import compare_configs, merge_reloaded
from vitald.publish.config import load_config
from vitald.publish.notify.settings import MAX_RECEIVERS, NotifySettings

GOOD = 'url = "https://x/hook"\n'


def read(text: str) -> Mapping[str, NotifySettings]:
    return parse_config(text, tomlfile.parse_toml(text, "c.toml"), "c.toml").get_group(
        NotifySettings
    )


def list_mistakes(text: str, folder: Path) -> list[str]:
    """The same from both readers of the file."""
    with pytest.raises(ConfigError) as caught:
        read(text)
    path = folder / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as of_publisher:
        load_config(path)
    mistakes = [error.replace(f"{path}", "c.toml") for error in of_publisher.value.errors]
    assert mistakes == caught.value.errors
    return mistakes


def test_every_key_is_read(tmp_path: Path) -> None:
    text = """
[notify.pager-1]
type = "webhook"
url = "https://[::1]:8443/a?b=c"
format = "pagerduty"
on = ["opened", "cleared"]
min_action = "reboot_node"
headers_file = "/h"
secret_file = "/s"
routing_key_file = "/r"
ca = "/c"
timeout = "30s"
drills = true
quiet = "off"
settle = "1h"
[notify.script]
type = "exec"
command = ["/bin/tell", "-v"]
[notify.alerts]
type = "alertmanager"
url = ["https://a:9093", "http://127.0.0.1:9093"]
"""
    receivers = read(text)
    assert receivers["pager-1"] == NotifySettings(
        url=("https://[::1]:8443/a?b=c",),
        format="pagerduty",
        on=("opened", "cleared"),
        min_action="reboot_node",
        headers_file=Path("/h"),
        secret_file=Path("/s"),
        routing_key_file=Path("/r"),
        ca=Path("/c"),
        timeout_s=30.0,
        drills=True,
        quiet_s=0.0,
        settle_s=3600.0,
    )
    assert receivers["script"] == NotifySettings(type="exec", command=("/bin/tell", "-v"))
    assert receivers["alerts"].url == ("https://a:9093", "http://127.0.0.1:9093")
    path = tmp_path / "c.toml"
    path.write_text(text)
    assert load_config(path).get_group(NotifySettings) == receivers


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.com/x", "http://127.0.0.1.evil.com/", "http://localhost.evil.com/"),
        *("ftp://x/", "https://", "https:///x", "x", "", 5, [], "https://u:p@x/", "https://u@x/"),
        *("https://x/\n", "https://x/a b", "https://x:99999/", "https://[::1", "https://x/é"),
        *("https://x/#y", "http://169.254.169.254/latest", "https://hooks..example.com/x"),
        *("https://.x/", "https://127.0.0.1:0/", ["https://x", "http://x"]),
        pytest.param(f"https://x/{'y' * 2048}", id="long"),
        pytest.param(f"https://{'y' * 64}.example.com/", id="long part"),
    ],
)
def test_an_address_that_is_not_safe(url: object, tmp_path: Path) -> None:
    (error,) = list_mistakes(f"[notify.a]\nurl = {json.dumps(url)}\n", tmp_path)
    assert error.startswith("c.toml:2: [notify.a] url: expected an address")
    assert "u:p" not in error and len(error) < 250


def test_the_address_may_be_in_a_file() -> None:
    settings = read('[notify.a]\nurl_file = "/u"\n')["a"]
    assert (settings.url_file, settings.url) == (Path("/u"), ())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://[::1]/", "http://localhost:1/"])
def test_http_is_for_this_machine_only(url: str) -> None:
    assert read(f'[notify.a]\nurl = "{url}"\n')["a"].url == (url,)


ALERTS, EXEC = 'type = "alertmanager"\n', 'type = "exec"\ncommand = ["/x"]\n'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "c.toml:1: [notify.a] url: it or url_file is needed, and not both"),
        (f'{GOOD}url_file = "/u"\n', "c.toml:2: [notify.a] url: it or url_file is needed"),
        (f'{ALERTS}{GOOD}url_file = "/u"\n', "c.toml:4: [notify.a] url_file: it has no effect for"),
        (f"{ALERTS}{GOOD}drills = true\n", "c.toml:4: [notify.a] drills: it has no effect for the"),
        (ALERTS, "c.toml:1: [notify.a] url: the type alertmanager needs it"),
        (f'{GOOD}format = "pagerduty"\n', "c.toml:1: [notify.a] routing_key_file: the format"),
        (f'{GOOD}routing_key_file = "/r"\n', "c.toml:3: [notify.a] routing_key_file: only the"),
        (f'{GOOD}command = ["/x"]\n', "c.toml:3: [notify.a] command: it has no effect for the"),
        (f'{EXEC}timeout = "2s"\n', "c.toml:4: [notify.a] timeout: it has no effect for the type"),
        ('type = "exec"\n', "c.toml:1: [notify.a] command: the type exec needs it"),
        ('command = ["x"]\n', "c.toml:2: [notify.a] command: expected a list of the absolute"),
        ('command = ["/x", "\\u0000"]\n', "c.toml:2: [notify.a] command: expected a list of"),
        ('timeout = "2h"\n', "c.toml:2: [notify.a] timeout: expected from 1s to 60s"),
        ('quiet = "2h"\n', 'c.toml:2: [notify.a] quiet: expected at most 1h, or "off"'),
        ('on = ["test"]\n', "c.toml:2: [notify.a] on: expected a list of opened"),
        ("on = []\n", "c.toml:2: [notify.a] on: expected a list of opened"),
        (f'{GOOD}on = ["cleared", "flags"]\n', "c.toml:3: [notify.a] on: cleared needs opened"),
        ('urls = ["x"]\n', "c.toml:2: [notify.a] urls: unknown key, did you mean url?"),
        ('secret = "x"\n', "c.toml:2: [notify.a] secret: unknown key"),
        ('url = ["https://x", "https://y"]\n', "c.toml:2: [notify.a] url: a webhook has one"),
    ],
)
def test_a_mistake_names_the_line_and_the_receiver(text: str, error: str, tmp_path: Path) -> None:
    (mistake,) = list_mistakes(f"[notify.a]\n{text}", tmp_path)
    assert mistake.startswith(error)


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = f"[notify.a]\n{GOOD}[notify.b]\nnam = 1\n[notify.c]\non = 5\n[notify.d]\n"
    errors = list_mistakes(text, tmp_path)
    assert [error.partition(": ")[0] for error in errors] == ["c.toml:4", "c.toml:6", "c.toml:7"]


@pytest.mark.parametrize("name", ["A", "a.b", "1", "a b", "", "a" * 26, "é"])
def test_a_name_that_is_none(name: str, tmp_path: Path) -> None:
    (error,) = list_mistakes(f"[notify.{json.dumps(name)}]\n{GOOD}", tmp_path)
    assert "expected a name of at most 25 lower-case letters, digits, _ and -" in error


def test_there_are_not_too_many(tmp_path: Path) -> None:
    many = "".join(f"[notify.a{number}]\n{GOOD}" for number in range(MAX_RECEIVERS + 1))
    (error,) = list_mistakes(many, tmp_path)
    assert "[notify]: expected at most 8 receivers, found 9" in error


@pytest.mark.parametrize("text", ["notify = 5\n", "[[notify]]\n", '[notify]\nurl = "a"\n'])
def test_what_are_no_tables_with_names(text: str, tmp_path: Path) -> None:
    (error,) = list_mistakes(text, tmp_path)
    assert error == "c.toml:1: [notify]: expected tables such as [notify.oncall]"


def test_a_change_needs_a_restart_of_the_publisher() -> None:
    old, new = Config(), Config(groups={NotifySettings: {"a": NotifySettings()}})
    changes = compare_configs(old, new)
    assert changes.pop(TakesEffect.PUBLISHER) == ["[notify.a]"]
    assert not any(changes.values())
    assert merge_reloaded(old, new) == new
