"""[[notify]]: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitald import config as configs
from vitald import tomlfile
from vitald.config_file import ConfigError
from vitald.publish.config import load_config
from vitald.publish_sections import MAX_NOTIFY, NotifySettings

GOOD = 'name = "a"\nurl = "https://x/hook"\n'


def read(text: str) -> tuple[NotifySettings, ...]:
    return configs.parse(text, tomlfile.parse_toml(text, "c.toml"), "c.toml").notify


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
[[notify]]
name = "pager-1"
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
repeat = "4h"
[[notify]]
name = "script"
type = "exec"
command = ["/bin/tell", "-v"]
[[notify]]
name = "alerts"
type = "alertmanager"
url = ["https://a:9093", "http://127.0.0.1:9093"]
"""
    pager, script, alerts = read(text)
    assert pager == NotifySettings(
        name="pager-1",
        urls=("https://[::1]:8443/a?b=c",),
        format="pagerduty",
        on=("opened", "cleared"),
        min_action="reboot_node",
        headers_file=Path("/h"),
        secret_file=Path("/s"),
        routing_key_file=Path("/r"),
        ca=Path("/c"),
        timeout_s=30.0,
        drills=True,
        repeat_s=14400.0,
    )
    assert script == NotifySettings(name="script", type="exec", command=("/bin/tell", "-v"))
    assert alerts.urls == ("https://a:9093", "http://127.0.0.1:9093")
    path = tmp_path / "c.toml"
    path.write_text(text)
    assert load_config(path).notify == (pager, script, alerts)


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.com/x", "http://127.0.0.1.evil.com/", "http://localhost.evil.com/"),
        *("ftp://x/", "https://", "https:///x", "x", "", 5, [], "https://u:p@x/", "https://u@x/"),
        *("https://x/\n", "https://x/a b", "https://x:99999/", "https://[::1", "https://x/é"),
        *("https://x/#y", f"https://x/{'y' * 2048}", "http://169.254.169.254/latest"),
        *("https://hooks..example.com/x", "https://.x/", f"https://{'y' * 64}.example.com/"),
    ],
)
def test_an_address_that_is_not_safe(url: object, tmp_path: Path) -> None:
    import json

    (error,) = list_mistakes(f'[[notify]]\nname = "a"\nurl = {json.dumps(url)}\n', tmp_path)
    assert error.startswith("c.toml:3: [[notify]] 'a' url: expected an address")
    assert "u:p" not in error and len(error) < 250


def test_the_address_may_be_in_a_file() -> None:
    (entry,) = read('[[notify]]\nname = "a"\nurl_file = "/u"\n')
    assert (entry.url_file, entry.urls) == (Path("/u"), ())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://[::1]/", "http://localhost:1/"])
def test_http_is_for_this_machine_only(url: str) -> None:
    assert read(f'[[notify]]\nname = "a"\nurl = "{url}"\n')[0].url == url


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('url = "https://x"\n', "c.toml:1: [[notify]] number 1 name: it is missing"),
        ('name = "A"\n', "c.toml:2: [[notify]] 'A' name: expected 1 to 32 small letters"),
        ('name = "a"\n', "c.toml:1: [[notify]] 'a' url: the type webhook needs it"),
        (f'{GOOD}url_file = "/u"\n', "c.toml:3: [[notify]] 'a' url: the type webhook needs it or"),
        (
            'name = "a"\ntype = "alertmanager"\nurl = "https://x"\nurl_file = "/u"\n',
            "c.toml:5: [[notify]] 'a' url_file: it has no effect for the type alertmanager",
        ),
        (
            'name = "a"\ntype = "alertmanager"\n',
            "c.toml:1: [[notify]] 'a' url: the type alertmanager needs it",
        ),
        (f'{GOOD}format = "pagerduty"\n', "c.toml:1: [[notify]] 'a' routing_key_file: the format"),
        (f'{GOOD}routing_key_file = "/r"\n', "c.toml:4: [[notify]] 'a' routing_key_file: only"),
        (f'{GOOD}command = ["/x"]\n', "c.toml:4: [[notify]] 'a' command: it has no effect"),
        ('name = "a"\ntype = "exec"\n', "c.toml:1: [[notify]] 'a' command: the type exec needs"),
        ('name = "a"\ncommand = ["x"]\n', "c.toml:3: [[notify]] 'a' command: expected a list of"),
        ('name = "a"\ncommand = ["/x", "\\u0000"]\n', "c.toml:3: [[notify]] 'a' command: expected"),
        ('name = "a"\ntimeout = "2h"\n', "c.toml:3: [[notify]] 'a' timeout: expected from 1s"),
        ('name = "a"\nrepeat = "1m"\n', "c.toml:3: [[notify]] 'a' repeat: expected at least 10m"),
        ('name = "a"\non = ["test"]\n', "c.toml:3: [[notify]] 'a' on: expected a list of opened"),
        ('name = "a"\non = []\n', "c.toml:3: [[notify]] 'a' on: expected a list of opened"),
        (f'{GOOD}on = ["cleared", "flags"]\n', "c.toml:4: [[notify]] 'a' on: cleared needs opened"),
        ('name = "a"\nurls = ["x"]\n', "c.toml:3: [[notify]] 'a' urls: unknown key, did you mean"),
        ('name = "a"\nsecret = "x"\n', "c.toml:3: [[notify]] 'a' secret: unknown key"),
        (
            'name = "a"\nurl = ["https://x", "https://y"]\n',
            "c.toml:3: [[notify]] 'a' url: a webhook has one",
        ),
    ],
)
def test_a_mistake_names_the_line_and_the_entry(text: str, error: str, tmp_path: Path) -> None:
    (mistakes,) = list_mistakes(f"[[notify]]\n{text}", tmp_path)
    assert mistakes.startswith(error)


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = f"[log]\nlevel = 'info'\n[[notify]]\n{GOOD}[[notify]]\nnam = 1\n[[notify]]\non = 5\n"
    errors = list_mistakes(text, tmp_path)
    assert [error.partition(": ")[0] for error in errors] == ["c.toml:7", "c.toml:9"]


def test_names_differ_and_are_not_too_many(tmp_path: Path) -> None:
    (error,) = list_mistakes(f"[[notify]]\n{GOOD}[[notify]]\n{GOOD}", tmp_path)
    assert error == "c.toml:5: [[notify]] 'a' name: an entry before this one has the same"
    many = "".join(
        f'[[notify]]\nname = "a{number}"\nurl = "https://x"\n' for number in range(MAX_NOTIFY + 1)
    )
    (error,) = list_mistakes(many, tmp_path)
    assert f"there are more than {MAX_NOTIFY}" in error


@pytest.mark.parametrize("text", ["notify = 5\n", "notify = [1]\n", '[notify]\nname = "a"\n'])
def test_what_is_no_array_of_tables(text: str, tmp_path: Path) -> None:
    (error,) = list_mistakes(text, tmp_path)
    assert "[notify]: expected tables, each below its own [[notify]]" in error


def test_the_example_of_an_entry_is_right() -> None:
    lines = configs.example().partition("#[[notify]]\n")[2].splitlines()
    keys = [line[1:] for line in lines if line[:1] == "#" and line[1:2].isalpha()]
    (entry,) = read("[[notify]]\n" + "\n".join(keys))
    assert entry.name == "oncall"


def test_a_change_needs_a_restart() -> None:
    old, new = configs.Config(), configs.Config(notify=(NotifySettings(name="a"),))
    assert configs.changed(old, new) == ([], ["[[notify]]"])
    assert configs.reloaded(old, new).notify == ()
