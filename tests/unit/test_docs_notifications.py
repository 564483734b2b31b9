"""docs/notifications.md: its samples are what the code sends, its configuration is valid, and its
recipes verify a real signature. `python -m tests.unit.test_docs_notifications` writes the samples.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from tests.notifications import FINDING, NODE, make_notification
from tests.unit.builders import ROOT
from tests.unit.test_notify_alertmanager import FINDING as XID_79
from tests.unit.test_notify_alertmanager import make_state
from vitald.config.sections import load_config
from vitald.model.words import When
from vitald.publish.notify.alertmanager import HOLD_S, FiringAlerts, build_document
from vitald.publish.notify.exec import build_environment
from vitald.publish.notify.formats import FORMATS
from vitald.publish.notify.notification import NotificationKind
from vitald.publish.notify.settings import NotifySettings
from vitald.publish.notify.webhook import build_headers

PATH = ROOT / "docs/notifications.md"
PAGE = PATH.read_text(encoding="utf-8")
OPENED = make_notification(NotificationKind.OPENED)
_SAMPLE = re.compile(r"(<!-- sample (\w+) -->\n```json\n)(.*?)(```\n)", re.DOTALL)


def build_alert() -> dict[str, object]:
    settings = NotifySettings(type="alertmanager", url=("https://a.example",))
    finding = replace(
        XID_79,
        id=FINDING.id,
        component=FINDING.component,
        when=When.NOW,
        since=FINDING.since,
        device=FINDING.uuid,
    )
    (alert,) = FiringAlerts(settings, NODE.host).list_alerts(make_state(finding), 0.0)
    return build_document(alert, OPENED.time + HOLD_S)


SAMPLES: dict[str, Callable[[], object]] = {
    "vitald": lambda: FORMATS["vitald"].build(OPENED),
    "alertmanager": build_alert,
}


def write_samples(page: str) -> str:
    """The page with its samples as the code makes them."""
    return _SAMPLE.sub(
        lambda found: found[1] + json.dumps(SAMPLES[found[2]](), indent=2) + "\n" + found[4], page
    )


def read_blocks(language: str) -> Iterator[str]:
    for found in re.finditer(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        yield found[1]


def test_the_samples_are_what_is_sent() -> None:
    assert [found[2] for found in _SAMPLE.finditer(PAGE)] == list(SAMPLES)
    assert write_samples(PAGE) == PAGE


@pytest.mark.parametrize("text", read_blocks("toml"))
def test_a_configuration_is_valid(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert load_config(path).get_group(NotifySettings)


def test_the_values_of_the_chart() -> None:
    (values,) = (yaml.safe_load(text) for text in read_blocks("yaml"))
    schema = json.loads((ROOT / "packaging/helm/vitald/values.schema.json").read_text())
    jsonschema_rs.validator_for(schema).validate(values)
    receivers = values["publisher"]["config"]["notify"]
    assert Path(receivers["chat"]["url_file"]).parent == Path("/etc/vitald-notify")
    assert Path(receivers["tickets"]["secret_file"]).parent == Path("/etc/vitald-notify")


def test_every_variable_is_named() -> None:
    named = set(re.findall(r"`(?:VITALD)?(_[A-Z_]+)`", PAGE))
    assert named == {
        name.removeprefix("VITALD") for name in build_environment(OPENED) if "VITALD" in name
    }


KEY = base64.b64encode(b"k" * 32).decode()
BODY = b'{"a": "\xc3\xa9"}\n'


def sign(timestamp: int) -> dict[str, str]:
    return build_headers(OPENED.id, timestamp, BODY, [b"o" * 32, b"k" * 32])


def test_the_recipe_in_python() -> None:
    (recipe,) = read_blocks("python")
    names: dict[str, Callable[[str, dict[str, str], bytes], bool]] = {}
    exec(recipe, names)  # as a reader runs it
    is_genuine = names["is_genuine"]
    headers = sign(int(time.time()))
    assert is_genuine(f"whsec_{KEY}", headers, BODY)
    assert not is_genuine(f"whsec_{KEY}", headers, BODY + b" ")
    assert not is_genuine(f"whsec_{base64.b64encode(b'x' * 32).decode()}", headers, BODY)
    assert not is_genuine(f"whsec_{KEY}", sign(int(time.time()) - 400), BODY)


def test_the_recipe_in_the_shell(tmp_path: Path) -> None:
    (recipe,) = (text for text in read_blocks("sh elsewhere") if "hexkey" in text)
    (tmp_path / "body").write_bytes(BODY)
    headers = sign(1794000000)
    digest = subprocess.run(
        ["sh", "-ec", recipe],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "SECRET": f"whsec_{KEY}",
            "WEBHOOK_ID": headers["webhook-id"],
            "WEBHOOK_TIMESTAMP": headers["webhook-timestamp"],
        },
        text=True,
        check=True,
        capture_output=True,
    ).stdout.strip()
    assert f"v1,{digest}" in headers["webhook-signature"].split()


if __name__ == "__main__":
    PATH.write_text(write_samples(PAGE), encoding="utf-8")
