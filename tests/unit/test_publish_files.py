"""Files that `vitald publish` writes: labels for Node Feature Discovery, metrics for
node_exporter.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import require
from tests.unit.test_publish_kubernetes import HEALTHY, NOW, SILENT, UNHEALTHY, XID79
from tests.waiting import until_async
from vitald.config.errors import ConfigError
from vitald.config.values import Config
from vitald.model.words import Status
from vitald.publish.config import load_config
from vitald.publish.files.nfd import EXPIRY_S, NfdSink, format_features
from vitald.publish.files.replace_file import REWRITE_S
from vitald.publish.files.textfile import TextfileSink, format_metrics
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.settings import PublishSettings
from vitald.publish.sink import Sink, SinkFailed, SinkRunner
from vitald.publish.sinks import NoSink, open_sinks
from vitald.publish.state_store import StateStore
from vitald.publish.summary import PublishedState
from vitald.timestamps import parse_rfc3339


def read_features(text: str, now: float) -> dict[str, str]:
    """The labels as Node Feature Discovery reads them (parseFeatureFile of source/local)."""
    labels = {}
    expires = now
    for line in text.splitlines():
        if line.startswith("# +expiry-time="):
            expires = parse_rfc3339(line.partition("=")[2]).timestamp()
        elif line and not line.startswith("#") and expires >= now:
            key, _, value = line.partition("=")
            labels[key] = value
    return labels


@pytest.mark.parametrize(
    ("state", "labels"),
    [
        (
            HEALTHY,
            {
                "status": "healthy",
                "action": "none",
                "reboot-required": "false",
                "replacement-required": "false",
            },
        ),
        (
            UNHEALTHY,
            {
                "status": "unhealthy",
                "action": "reboot_node",
                "reboot-required": "true",
                "replacement-required": "false",
            },
        ),
        (SILENT, {"status": "unknown", "action": "none"}),
    ],
)
def test_labels_for_nfd_expire(state: PublishedState, labels: dict[str, str]) -> None:
    written = format_features(state, "health.example.com", NOW)
    expected = {f"health.example.com/{key}": value for key, value in labels.items()}
    assert read_features(written, NOW) == expected
    assert read_features(written, NOW + EXPIRY_S - 1) == expected
    assert read_features(written, NOW + EXPIRY_S + 1) == {}
    assert EXPIRY_S > 2 * REWRITE_S, "one write may fail"


def list_samples(text: str) -> dict[tuple[str, ...], float]:
    """Name and values of the labels of each sample."""
    return {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_of_a_fault() -> None:
    another = replace(XID79, component="gpu/0000:66:00.0")
    samples = list_samples(format_metrics(replace(UNHEALTHY, findings=(XID79, another))))
    assert samples["vitald_up",] == 1
    assert samples["vitald_status", "unhealthy"] == 1
    assert samples["vitald_status", "healthy"] == 0
    assert (samples["vitald_reboot_due",], samples["vitald_replacement_due",]) == (1, 0)
    assert samples["vitald_open_findings",] == 1
    found = [key for key in samples if key[0] == "vitald_findings"]
    assert found == [
        ("vitald_findings", "false", "reboot_node", "79", f"gpu/{pci}", "xid", pci, "false", "now")
        for pci in ("0000:65:00.0", "0000:66:00.0")
    ]
    opened = [value for key, value in samples.items() if key[0].startswith("vitald_finding_opened")]
    assert opened == [XID79.since] * 2


def test_metrics_of_a_silent_daemon_claim_nothing() -> None:
    samples = list_samples(format_metrics(SILENT))
    assert {key for key, value in samples.items() if value} == {
        ("vitald_status", Status.UNKNOWN.value)
    }
    assert {key[0] for key in samples} == {"vitald_up", "vitald_status"}


def test_metrics_are_those_of_the_daemon() -> None:
    """The same names have the same texts: node_exporter refuses contradictions, and a rule works
    for both.
    """
    from tests import metrics_page

    page = metrics_page.PAGE.read_text("utf-8")
    rows = {row.split("`")[1]: row for row in page.splitlines() if "` | gauge |" in row}
    families = {
        family.name: family.documentation
        for family in text_string_to_metric_families(format_metrics(UNHEALTHY))
    }
    shared = families.keys() & rows.keys()
    assert shared == {
        "vitald_status",
        "vitald_findings",
        "vitald_finding_opened_timestamp_seconds",
    }
    assert [name for name in shared if not rows[name].endswith(f"| {families[name]} |")] == []


MADE: list[tuple[str, Callable[[Path], Sink]]] = [
    ("vitald", lambda folder: NfdSink(folder, "vitald.io")),
    ("vitald.prom", lambda folder: TextfileSink(folder / "vitald.prom")),
]


@pytest.mark.parametrize(("name", "make_sink"), MADE)
def test_a_file_is_replaced_at_once_and_readable_by_all(
    tmp_path: Path, name: str, make_sink: Callable[[Path], Sink]
) -> None:
    sink, path = make_sink(tmp_path), tmp_path / name
    old_mask = os.umask(0o077)
    try:
        asyncio.run(sink.write_state(HEALTHY))
        with path.open() as opened:
            asyncio.run(sink.write_state(UNHEALTHY))
            assert "unhealthy" not in opened.read().replace('status="unhealthy"} 0', "")
    finally:
        os.umask(old_mask)
    assert path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("name", "make_sink"), MADE)
def test_a_link_in_the_folder_is_not_written_through(
    tmp_path: Path, name: str, make_sink: Callable[[Path], Sink]
) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / f".{name}.new").symlink_to(target)
    (folder / name).symlink_to(target)
    asyncio.run(make_sink(folder).write_state(HEALTHY))
    assert target.read_text() == "precious"
    assert not (folder / name).is_symlink()


@pytest.mark.parametrize(("name", "make_sink"), MADE)
def test_a_folder_that_is_missing_is_named(
    tmp_path: Path, name: str, make_sink: Callable[[Path], Sink]
) -> None:
    sink = make_sink(tmp_path / "none")
    with pytest.raises(SinkFailed, match=f"{tmp_path}/none/{name}: No such file"):
        asyncio.run(sink.write_state(HEALTHY))


def test_a_disk_that_is_full_leaves_the_file_and_nothing_else(tmp_path: Path) -> None:
    require(Path("/dev/full").exists(), "/dev/full")
    sink = NfdSink(tmp_path, "vitald.io")
    asyncio.run(sink.write_state(HEALTHY))
    before = (tmp_path / "vitald").read_text()
    real_open = os.open

    def open_full(path: Path, flags: int, mode: int) -> int:
        os.close(real_open(path, flags, mode))
        return real_open("/dev/full", os.O_WRONLY)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("vitald.publish.files.replace_file.os.open", open_full)
        with pytest.raises(SinkFailed, match="No space left on device"):
            asyncio.run(sink.write_state(UNHEALTHY))
    assert (tmp_path / "vitald").read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["vitald"]


def test_a_runner_writes_an_unchanged_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitald.publish.files.nfd.REWRITE_S", 0.01)
    monkeypatch.setattr("vitald.publish.sink.WORSE_S", 0.0)
    runner = SinkRunner(NfdSink(tmp_path, "vitald.io"), StateStore(tmp_path / "state"))

    async def run() -> None:
        task = asyncio.ensure_future(runner.run())
        runner.offer_state(HEALTHY)
        await until_async(lambda: runner.health.writes >= 3, "three writes")
        task.cancel()

    asyncio.run(run())
    assert runner.health.is_up


def test_the_configuration_names_the_sinks(tmp_path: Path) -> None:
    async def list_sinks(config: Config) -> list[str]:
        store = StateStore(tmp_path / "state")
        try:
            async with open_sinks(config, store) as sinks:
                return [sink.health.name for sink in sinks]
        finally:
            store.close()

    both = Config(
        PublishSettings(nfd=tmp_path, textfile=tmp_path / "vitald.prom"),
        KubernetesSettings(),
    )
    assert asyncio.run(list_sinks(both)) == ["nfd", "textfile"]
    with pytest.raises(NoSink):
        asyncio.run(list_sinks(Config()))


def test_a_file_that_node_exporter_would_not_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[publish]\ntextfile = "/var/lib/node_exporter/vitald.txt"\n')
    with pytest.raises(ConfigError) as failed:
        load_config(path)
    assert any(
        "[publish] textfile: expected the path of a file *.prom" in line
        for line in failed.value.errors
    )
