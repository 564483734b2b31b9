"""The configuration file: every key, every mistake with its line, and what a reload may change."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import require
from tests.unit.builders import ROOT
from vitald import tomlfile
from vitald.catalog.settings import CatalogSettings
from vitald.collectors.kernel_log.settings import KernelLogSettings
from vitald.config.errors import ConfigError
from vitald.config.paths import Paths
from vitald.config.section import TakesEffect
from vitald.config.sections import SECTIONS, format_example, load_config, parse_config
from vitald.config.values import Config
from vitald.core.config_reload import compare_configs, merge_reloaded
from vitald.diagnostics.settings import DiagnosticsSettings, SiteCheckSettings
from vitald.judge.settings import PolicySettings
from vitald.ledger.settings import LedgerSettings
from vitald.log.settings import LogSettings
from vitald.metrics.settings import Listen, MetricsSettings
from vitald.publish.config import load_config as load_publisher_config
from vitald.publish.notify.settings import NotifySettings
from vitald.publish.settings import PublishSettings
from vitald.recovery.settings import Limit, Method
from vitald.server.settings import SocketSettings, find_socket
from vitald.slurm.settings import SlurmSettings

EXAMPLE = ROOT / "config.example.toml"

# Every key: what the file says, and what the code then has.
KEYS: dict[tuple[str, str], tuple[str, object]] = {
    ("paths", "sysfs"): ('"/host/sys"', Path("/host/sys")),
    ("paths", "procfs"): ('"/host/proc"', Path("/host/proc")),
    ("paths", "fstab"): ('"/host/etc/fstab"', Path("/host/etc/fstab")),
    ("paths", "state"): ('"/data/vitald"', Path("/data/vitald")),
    ("paths", "runtime"): ('"/data/run"', Path("/data/run")),
    ("kernel_log", "source"): ('"kmsg"', "kmsg"),
    ("kernel_log", "path"): ('"/data/kmsg"', Path("/data/kmsg")),
    ("kernel_log", "journal"): ('"off"', "off"),
    ("kernel_log", "userspace"): ('"ignore"', "ignore"),
    ("nvml", "enabled"): ("false", False),
    ("nvml", "expected_gpus"): ("8", 8),
    ("nvml", "fast"): ('"5s"', 5.0),
    ("nvml", "slow"): ('"30s"', 30.0),
    ("nvml", "inventory"): ('"1h"', 3600.0),
    ("nvml", "deadline"): ('"20s"', 20.0),
    ("nvml", "give_up"): ('"2m"', 120.0),
    ("nvml", "profiling"): ("true", True),
    ("nvml", "driver_root"): ('"/opt/driver"', Path("/opt/driver")),
    ("nvml", "library"): ('"/opt/lib/libnvidia-ml.so.1"', Path("/opt/lib/libnvidia-ml.so.1")),
    **{
        (section, key): value
        for section in ("neuron", "network", "pci", "host", "hwmon")
        for key, value in (
            ("enabled", ("false", False)),
            ("every", ('"5m"', 300.0)),
            ("deadline", ('"3s"', 3.0)),
        )
    },
    ("network", "exclude"): ('["mlx5_bond_*", " 0000:c4:00.0"]', ("mlx5_bond_*", "0000:c4:00.0")),
    ("pci", "exclude"): ('["0000:c?:*", " 0000:c4:00.0"]', ("0000:c?:*", "0000:c4:00.0")),
    ("host", "mounts"): ('["/data/"]', ("/data",)),
    ("host", "units"): ('["slurmd", "a.mount"]', ("slurmd.service", "a.mount")),
    ("host", "units_if_enabled"): ("[]", ()),
    **{("expect", kind): ("16", 16) for kind in ("neuron", "efa", "nics", "nvme", "boots")},
    **{
        ("expect", kind): ('["1.2", "1.3"]', ("1.2", "1.3"))
        for kind in ("gpu_driver", "vbios", "neuron_driver", "efa_driver", "kernel")
    },
    ("diagnostics", "enabled"): ("false", False),
    ("diagnostics", "idle"): ('"10m"', 600.0),
    ("diagnostics", "ignore_processes"): ('["/opt/our/exporter"]', ("/opt/our/exporter",)),
    ("diagnostics", "keep"): ('"7d"', 7 * 86400.0),
    ("diagnostics", "overdue"): ('"drain"', "drain"),
    ("diagnostics", "deep_log"): ('"/data/deep.log"', Path("/data/deep.log")),
    ("dcgm", "enabled"): ("false", False),
    ("dcgm", "program"): ('"/opt/dcgmi"', "/opt/dcgmi"),
    ("dcgm", "level_1"): ('"off"', 0.0),
    ("dcgm", "level_2"): ('"12h"', 43200.0),
    ("dcgm", "max_level"): ("3", 3),
    **{("dcgm", f"deadline_{level}"): ('"7m"', 420.0) for level in (1, 2, 3, 4)},
    ("dcgm_health", "enabled"): ("false", False),
    **{
        (section, "every"): ('"6h"', 21600.0)
        for section in ("dcgm_health", "efa_loopback", "nccom", "nccl")
    },
    **{
        (section, "deadline"): ('"9m"', 540.0)
        for section in ("dcgm_health", "efa_loopback", "nccom", "nccl")
    },
    **{("efa_loopback", key): ("80", 80.0) for key in ("min_gbps", "max_latency_us")},
    **{(section, "min_gbytes"): ("300", 300.0) for section in ("nccom", "nccl")},
    ("nccl", "program"): ('"/opt/all_reduce_perf"', "/opt/all_reduce_perf"),
    ("slurm", "unknown"): ('"refuse"', "refuse"),
    ("slurm", "level_1_age"): ('"1h"', 3600.0),
    ("slurm", "budget"): ('"3s"', 3.0),
    ("slurm", "level_2_after_failure"): ("false", False),
    ("slurm", "reason"): ('"health"', "health"),
    ("slurm", "record"): ('"/x/reason"', Path("/x/reason")),
    ("slurm", "hyperpod"): ("true", True),
    ("recovery", "mode"): ('"automatic"', "automatic"),
    ("recovery", "after"): ('"10m"', 600.0),
    ("recovery", "min_uptime"): ('"1h"', 3600.0),
    ("recovery", "drain"): ('["/opt/drain", "-v"]', Method(argv=("/opt/drain", "-v"))),
    ("recovery", "replace"): ('"kubernetes"', Method(word="kubernetes")),
    ("recovery", "reboot"): ('["/sbin/reboot"]', Method(argv=("/sbin/reboot",))),
    ("recovery", "brake"): ('"lease"', Method(word="lease")),
    ("recovery", "brake_limit"): ('"5%"', Limit(percent=5)),
    ("recovery", "brake_delay"): ('"off"', 0.0),
    ("recovery", "lease_namespace"): ('"gpu-ops"', "gpu-ops"),
    ("recovery", "lease_kubeconfig"): ('"/etc/l"', Path("/etc/l")),
    ("recovery", "lease_duration"): ('"2h"', 7200.0),
    **{("recovery", f"{what}_per_day"): ("3", 3) for what in ("reboots", "replacements")},
    ("recovery", "deadline"): ('"5m"', 300.0),
    **{
        ("recovery", what): (f'"/data/{what}"', Path(f"/data/{what}"))
        for what in ("kill_switch", "maintenance", "state", "kubeconfig")
    },
    ("recovery", "node"): ('"gpu-17"', "gpu-17"),
    ("recovery", "label"): ('"example.com/x=y"', "example.com/x=y"),
    ("publish", "user"): ('"publisher"', "publisher"),
    ("publish", "drills"): ("true", True),
    **{("publish", what): (f'"/data/{what}"', Path(f"/data/{what}")) for what in ("state", "nfd")},
    ("publish", "textfile"): ('"/data/v.prom"', Path("/data/v.prom")),
    ("kubernetes", "node"): ('"gpu-17"', "gpu-17"),
    ("kubernetes", "server"): ('"https://[::1]:6443"', "https://[::1]:6443"),
    **{
        ("kubernetes", what): (f'"/data/{what}"', Path(f"/data/{what}"))
        for what in ("ca", "token_file", "client_certificate", "client_key")
    },
    ("kubernetes", "exec"): ('["/opt/aws", "get-token"]', ("/opt/aws", "get-token")),
    ("kubernetes", "prefix"): ('"health.example.com"', "health.example.com"),
    ("kubernetes", "conditions"): ('["own", "eks"]', ("own", "eks")),
    ("kubernetes", "taint"): ('"NoSchedule"', "NoSchedule"),
    ("kubernetes", "heartbeat"): ('"10m"', 600.0),
    **{
        ("kubernetes", key): ("true", True) for key in ("enabled", "impersonate", "driver_upgrades")
    },
    **{("kubernetes", key): ("false", False) for key in ("labels", "annotation", "events")},
    ("socket", "path"): ('"/data/v.sock"', Path("/data/v.sock")),
    ("socket", "group"): ('"slurm"', "slurm"),
    ("metrics", "listen"): ('"[::1]:9"', Listen("::1", 9)),
    ("metrics", "nvlink"): ('"each"', "each"),
    ("catalog", "profile"): ('"hyperpod"', "hyperpod"),
    ("expect", "settle"): ('"90s"', 90.0),
    ("expect", "nvlinks"): ("6", 6),
    ("expect", "link_rate"): ('{ "mlx5_*" = 400, eth1 = 2.5 }', {"mlx5_*": 400e9, "eth1": 2.5e9}),
    ("catalog", "overrides"): (
        '{ "xid/63" = { action = "reboot_node" } }',
        {"xid/63": {"action": "reboot_node"}},
    ),
    ("policy", "device_reset"): ("true", True),
    ("ledger", "keep"): ('"7d"', 7 * 86400.0),
    ("ledger", "max_size"): ('"1GiB"', 1 << 30),
    ("log", "level"): ('"debug"', "debug"),
    ("log", "format"): ('"json"', "json"),
}


def read(text: str) -> Config:
    return parse_config(text, tomlfile.parse_toml(text, "c.toml"), "c.toml")


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value) == "\n".join(caught.value.errors)
    return caught.value.errors


def value_of(config: Config, section: str, key: str) -> object:
    declared = SECTIONS[section]
    return getattr(config[declared.settings], declared.list_settings()[key][0])


def test_nothing_said_gives_the_defaults() -> None:
    config = Config()
    assert read("") == config == load_config(None)
    assert (config[Paths].sysfs, config[Paths].procfs) == (Path("/sys"), Path("/proc"))
    assert (
        config[KernelLogSettings].source,
        config[KernelLogSettings].path,
        config[KernelLogSettings].userspace,
    ) == (
        "kmsg",
        Path("/dev/kmsg"),
        "unconfirmed",
    )
    assert (
        config[CatalogSettings].profile,
        config[CatalogSettings].overrides,
        config[PolicySettings].device_reset,
    ) == (
        "nvidia",
        {},
        False,
    )
    assert (config[MetricsSettings].listen, config[SocketSettings].group) == (
        Listen("127.0.0.1", 9820),
        None,
    )
    assert (config[LedgerSettings].keep_s, config[LedgerSettings].max_size) == (
        90 * 86400.0,
        512 << 20,
    )
    assert (config[LogSettings].level, config[LogSettings].format) == ("info", "text")


def test_the_table_of_this_test_has_every_key() -> None:
    assert set(KEYS) == {
        (name, key) for name, section in SECTIONS.items() for key in section.list_settings()
    }


def write_file(values: dict[tuple[str, str], str]) -> str:
    """A file with a value for each key, and the key's section before each value."""
    sections: dict[str, list[str]] = {}
    for (section, key), value in values.items():
        sections.setdefault(section, []).append(f"{key} = {value}\n")
    return "".join(f"[{section}]\n{''.join(lines)}" for section, lines in sections.items())


def test_every_key_is_read() -> None:
    """And no other one by it."""
    default = Config()
    for name, (written, value) in KEYS.items():
        config = read(write_file({name: written}))
        assert value_of(config, *name) == value, name
        others = [other for other in KEYS if other != name]
        found = [one for one in others if value_of(config, *one) != value_of(default, *one)]
        assert found == [], name


@pytest.mark.parametrize("value", ["5.5", "1979-05-27", "[]", '""', "[1]"])
def test_no_key_takes_anything(value: str) -> None:
    """A list may be empty, and a figure may have a fraction; a period is no figure."""

    def is_taken(name: tuple[str, str]) -> bool:
        written, known = KEYS[name]
        if value == "[]":
            return isinstance(known, tuple)
        return value == "5.5" and isinstance(known, float) and not written.startswith('"')

    taken = {name: value for name in KEYS if is_taken(name)}
    config = read(write_file(taken))
    assert all(value_of(config, *name) in ((), 5.5) for name in taken)
    refused = write_file({name: value for name in KEYS if name not in taken})
    lines = enumerate(refused.splitlines(), start=1)
    expected, section = [], ""
    for number, line in lines:
        if line.startswith("["):
            section = line
        else:
            expected.append(f"c.toml:{number}: {section} {line.partition(' ')[0]}")
    found = [": ".join(error.split(": ", 2)[:2]) for error in mistakes(refused)]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[kernal_log]\n", "c.toml:1: [kernal_log]: unknown section, did you mean kernel_log?"),
        ("[zzz]\n", "c.toml:1: [zzz]: unknown section"),
        ("\n\n[log]\nlevle = 'info'\n", "c.toml:4: [log] levle: unknown key, did you mean level?"),
        ("[log]\nzzz = 1\n", "c.toml:2: [log] zzz: unknown key"),
        ("[ledger]\nkeep_s = '1d'\n", "c.toml:2: [ledger] keep_s: unknown key, did you mean keep?"),
        ("log = 5\n", "c.toml:1: [log]: expected a table, found 5"),
        (
            "[log]\n# level = 1\nformat = 'text'\nlevel = 'loud'\n",
            "c.toml:4: [log] level: must be one of debug, info, warning, error, not 'loud'",
        ),
        (
            "[log]\nlevel = 'warnin'\n",
            (
                "c.toml:2: [log] level: must be one of debug, info, warning, error, not 'warnin',"
                " did you mean warning?"
            ),
        ),
        (
            "[policy]\ndevice_reset = 1\n",
            "c.toml:2: [policy] device_reset: expected true or false, found 1",
        ),
        (
            "[paths]\nstate = 'var/lib'\n",
            "c.toml:2: [paths] state: expected an absolute path, found 'var/lib'",
        ),
        (
            "[catalog]\nprofile = 'hyperpd'\n",
            (
                "c.toml:2: [catalog] profile: must be one of nvidia, hyperpod, not 'hyperpd', did you"
                " mean hyperpod?"
            ),
        ),
        (
            "[kernel_log]\nsource = 'file'\n",
            'c.toml:1: [kernel_log] path: source = "file" needs the path of the file',
        ),
        (
            "log.level = 'loud'\n",
            "c.toml:1: [log] level: must be one of debug, info, warning, error, not 'loud'",
        ),
        (
            "expected_gpus = 8\n",
            "c.toml:1: expected_gpus: stands in no section: it belongs below [nvml]",
        ),
        (
            "[log]\n[host]\nmounts = [\n  '/',\n  'data',\n]\n",
            "c.toml:3: [host] mounts: expected an absolute path, found 'data'",
        ),
        (
            "[host]\nunits = 'slurmd.service'\n",
            "c.toml:2: [host] units: expected a list of strings, found 'slurmd.service'",
        ),
        (
            "[host]\nunits = ['slurmd.srvice']\n",
            'c.toml:2: [host] units: expected a list of systemd units such as "slurmd.service",'
            " found 'slurmd.srvice'",
        ),
        (
            "[pci]\nexclude = ['c4:00.0']\n",
            'c.toml:2: [pci] exclude: expected a list of PCI addresses such as "0000:c4:00.0",'
            " \"0000:c4:*\", found 'c4:00.0'",
        ),
        (
            "[dcgm]\nprogram = 'bin/dcgmi'\n",
            "c.toml:2: [dcgm] program: expected an absolute path or a bare name, found 'bin/dcgmi'",
        ),
    ],
)
def test_a_mistake_names_line_section_and_key(text: str, error: str) -> None:
    assert mistakes(text) == [error]


@pytest.mark.parametrize(
    "value",
    ["90", "90 s", "90x", "-1d", "d", "1e3s", "1d2h", "9999999999s", "1.2345s", "0x1s", "nans"],
)
def test_bad_durations(value: str) -> None:
    (error,) = mistakes(f"[ledger]\nkeep = '{value}'\n")
    assert f"{value!r} is not a duration" in error


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("500ms", 0.5),
        ("90s", 90.0),
        ("10m", 600.0),
        ("24h", 86400.0),
        ("7d", 604800.0),
        ("1.5h", 5400.0),
    ],
)
def test_good_durations(value: str, seconds: float) -> None:
    assert read(f"[ledger]\nkeep = '{value}'\n")[LedgerSettings].keep_s == seconds


@pytest.mark.parametrize(
    "value",
    ["'64MB'", "'64 mib'", "'MiB'", "'-1MiB'", "'1.5GiB'", "'64'", "0", "-1", "true", "1.0"],
)
def test_bad_sizes(value: str) -> None:
    (error,) = mistakes(f"[ledger]\nmax_size = {value}\n")
    assert "is not a size" in error


@pytest.mark.parametrize(
    ("value", "size"),
    [("'64KiB'", 65536), ("'64 MiB'", 64 << 20), ("'2GiB'", 2 << 30), ("123", 123)],
)
def test_good_sizes(value: str, size: int) -> None:
    assert read(f"[ledger]\nmax_size = {value}\n")[LedgerSettings].max_size == size


@pytest.mark.parametrize(
    "value",
    [
        "9820",
        ":9820",
        "localhost:9820",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:x",
        "on",
        "1.2.3:4",
    ],
)
def test_bad_addresses(value: str) -> None:
    (error,) = mistakes(f"[metrics]\nlisten = '{value}'\n")
    assert "expected an address and port" in error


@pytest.mark.parametrize(
    ("value", "listen", "shown"),
    [
        ("off", None, "None"),
        ("0.0.0.0:0", Listen("0.0.0.0", 0), "0.0.0.0:0"),
        ("[::]:65535", Listen("::", 65535), "[::]:65535"),
    ],
)
def test_good_addresses(value: str, listen: Listen | None, shown: str) -> None:
    read_back = read(f"[metrics]\nlisten = '{value}'\n")[MetricsSettings].listen
    assert (read_back, str(read_back)) == (listen, shown)


def test_a_socket_path_must_fit_into_its_address() -> None:
    longest = "/" + "x" * 106
    assert find_socket(read(f"[socket]\npath = '{longest}'\n")) == Path(longest)
    (error,) = mistakes(f"[socket]\npath = '{longest}x'\n")
    assert error.startswith("c.toml:2: [socket] path: ")
    assert "107 bytes" in error
    assert (
        len(mistakes(f"[paths]\nruntime = '/{'x' * 100}'\n")) == 1
    )  # the default's place counts too
    assert len(mistakes(f"[socket]\npath = '/{'é' * 54}'\n")) == 1  # bytes, not letters


def test_the_socket_lies_in_the_runtime_folder_unless_said() -> None:
    assert find_socket(read("[paths]\nruntime = '/r'\n")) == Path("/r/vitald.sock")
    assert find_socket(read("[paths]\nruntime = '/r'\n[socket]\npath = '/s/v.sock'\n")) == Path(
        "/s/v.sock"
    )


def test_a_path_holds_no_nul() -> None:
    mistakes('[paths]\nstate = "/a\\u0000b"\n')


def test_all_mistakes_are_told_at_once_with_their_lines() -> None:
    text = (
        "[paths]\nstate = 'x'\nsysfs = 5\n\n[logg]\n\n[log]\nlevel = 'loud'\nlevle ="
        " 1\n[socket]\npath = '/ok'\n[catalog.overrides.\"xid/79\"]\naction = 'rebot'\nbogus = 1\n"
    )
    errors = mistakes(text)
    assert [error.split(": ")[0] for error in errors[:5]] == [
        "c.toml:2",
        "c.toml:3",
        "c.toml:5",
        "c.toml:8",
        "c.toml:9",
    ]
    assert len(errors) == 7
    assert [error.partition(":")[2].partition(": ")[0] for error in errors[5:]] == ["14", "13"]
    assert all(": [catalog.overrides]: [xid.79] " in error for error in errors[5:])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[log]\n[catalog.overrides.'xid/79']\nwhen = 'now'\naction = 'x'\n", 4),
        ("[catalog.overrides.xid.79]\naction = 'x'\n", 2),
        ("[catalog]\nprofile = 'nvidia'\noverrides.'xid/79'.action = 'x'\n", 3),
        ("[catalog.overrides]\n'xid/63' = {}\nxid.79 = { action = 'x' }\n", 3),
        ("[catalog]\n\noverrides = { 'xid/79' = { action = 'x' } }\n", 3),
        ("catalog = { overrides = { xid.79.action = 'x' } }\n", 1),
        (
            "[catalog.overrides.'xid/63']\ncases = [\n]\n[catalog.overrides.'xid/79']\ncases = [\n  { action = 'x' },\n]\n",
            5,
        ),
        ("[[catalog.overrides.'xid/79'.cases]]\nwhere = {}\naction = 'x'\n", 1),
        ("[catalog.overrides.site.new]\n# needs a title\naction = 'none'\n", 1),
        (
            "[catalog.overrides.policies.ours]\naction = 'x'\n[catalog.overrides.'xid/79']\npolicy = 'ours'\n",
            2,
        ),
        ("[catalog]\noverrides.'xid/79' = 5\n", 2),
        ("[catalog]\n[catalog.overrides]\nxid = 5\n", 2),
    ],
)
def test_a_mistake_in_an_override_has_its_line(text: str, line: int) -> None:
    found = mistakes(text)
    assert found
    assert all(error.startswith(f"c.toml:{line}: [catalog.overrides]: ") for error in found), found


def test_overrides_of_the_file_reach_the_catalogue() -> None:
    config = read('[catalog.overrides."xid/79"]\naction = "inspect"\n')
    assert config[CatalogSettings].overrides == {"xid/79": {"action": "inspect"}}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "cannot be read: No such file"),
        (b"[log", "not valid TOML"),
        (b"a = '\xff'", "not UTF-8 text at byte 5"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, what: str
) -> None:
    path = tmp_path / "c.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    (error,) = caught.value.errors
    assert error.startswith(f"{path}: ")
    assert what in error


def test_a_file_of_brackets_is_told(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"a = {'[' * 5000}")
    with pytest.raises(ConfigError):
        load_config(path)


def test_a_number_without_end_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"[ledger]\nmax_size = {'9' * 5000}\n")
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load_config(path)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("recovery", "reboot"),
        ("recovery", "drain"),
        ("kubernetes", "exec"),
        ("checks.a", "run"),
        ("notify.a", "command"),
    ],
)
@pytest.mark.parametrize("value", ['["/a\\u0000"]', '["/a", "b\\u0000"]', '["a/b"]', "[1]", '"/a"'])
def test_a_command_that_cannot_be_run_is_refused(section: str, key: str, value: str) -> None:
    (error,) = mistakes(f"[{section}]\n{key} = {value}\n")
    assert error.startswith(f"c.toml:2: [{section}] {key}: ")


# --- reload


def test_nothing_changed() -> None:
    assert compare_configs(Config(), Config()) == {effect: [] for effect in TakesEffect}


def test_what_a_change_needs() -> None:
    new = Config(
        LogSettings(level="debug", format="json"),
        PolicySettings(device_reset=True),
        MetricsSettings(listen=None),
        LedgerSettings(keep_s=1.0),
        CatalogSettings(profile="hyperpod"),
        SlurmSettings(reason="health"),
        PublishSettings(user="other", drills=True),
    )
    changes = compare_configs(Config(), new)
    assert changes == {
        TakesEffect.RELOAD: [
            "[catalog] profile",
            "[policy] device_reset",
            "[ledger] keep",
            "[log] level",
        ],
        TakesEffect.RESTART: ["[publish] user", "[metrics] listen", "[log] format"],
        TakesEffect.PUBLISHER: ["[publish] drills"],
        TakesEffect.AT_ONCE: ["[slurm] reason"],
    }
    left = compare_configs(merge_reloaded(Config(), new), new)
    assert left.pop(TakesEffect.RESTART) == changes[TakesEffect.RESTART]
    assert not any(left.values())


def test_every_key_is_told_when_it_changes() -> None:
    old = Config()
    for name, key in KEYS:
        section = SECTIONS[name]
        attribute, _ = section.list_settings()[key]
        other = replace(old[section.settings], **{attribute: object()})
        found = compare_configs(old, old.replace(other))
        wanted = {effect: [] for effect in TakesEffect}
        wanted[section.find_effect(key)] = [f"[{name}] {key}"]
        assert found == wanted


def test_a_section_that_was_not_read_is_an_error_not_its_defaults(tmp_path: Path) -> None:
    """`vitald publish` reads few sections: what others say of the file is not known to it."""
    path = tmp_path / "c.toml"
    path.write_text("[diagnostics]\nenabled = false\n[checks.a]\nrun = ['a']\n")
    for given in (path, None):
        config = load_publisher_config(given)
        assert config[PublishSettings] == PublishSettings()
        for read_section in (
            lambda config: config[DiagnosticsSettings],
            lambda config: config.get_group(SiteCheckSettings),
            lambda config: config.replace(PublishSettings(drills=True))[DiagnosticsSettings],
        ):
            with pytest.raises(KeyError, match="is not among the sections that were read"):
                read_section(config)
    assert load_config(path)[DiagnosticsSettings].enabled is False


# --- the example


def test_the_example_is_the_one_that_the_code_writes() -> None:
    require(EXAMPLE.is_file(), "config.example.toml")
    assert EXAMPLE.read_text(encoding="utf-8") == format_example()


def test_the_example_shows_every_key_with_its_default() -> None:
    require(EXAMPLE.is_file(), "config.example.toml")
    text = EXAMPLE.read_text(encoding="utf-8")
    shown = load_config(EXAMPLE)
    of_root = {"state": Path("/var/lib/vitald"), "runtime": Path("/run/vitald")}
    for section, key in KEYS:
        default = (
            of_root.get(key, value_of(Config(), section, key))
            if section == "paths"
            else value_of(Config(), section, key)
        )
        if (section, key) == ("socket", "path"):
            default = Path("/run/vitald/vitald.sock")
        assert value_of(shown, section, key) == default, (section, key)
        body = text.partition(f"\n[{section}]\n")[2].partition("\n[")[0]
        assert re.search(rf"^#?{key}\b", body, re.M), (section, key)


def test_what_the_example_comments_out_is_right_too() -> None:
    require(EXAMPLE.is_file(), "config.example.toml")
    text = re.sub(r"^#(?=[\w[])", "", EXAMPLE.read_text(encoding="utf-8"), flags=re.M)
    config = read(text)
    assert config[SocketSettings].group == "slurm"
    run = ("/usr/bin/mountpoint", "-q", "/scratch")
    assert config.get_group(SiteCheckSettings) == {"scratch": SiteCheckSettings(run=run)}
    url = ("https://hooks.example.com/vitald",)
    assert config.get_group(NotifySettings) == {"oncall": NotifySettings(url=url)}


def test_a_service_uses_the_folders_that_systemd_made_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where its configuration file says nothing of them: its user has no other folder that
    survives.
    """
    monkeypatch.setattr(os, "geteuid", lambda: 997)
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/vitald")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/vitald:/var/lib/other")
    config = read('[log]\nlevel = "info"\n')
    assert (config[Paths].runtime, config[Paths].state) == (
        Path("/run/vitald"),
        Path("/var/lib/vitald"),
    )
    monkeypatch.setenv("RUNTIME_DIRECTORY", "relative")
    assert read("")[Paths].runtime != Path("relative")


@pytest.mark.parametrize(
    "value", ['["nvidia-smi"]', '"gpud"', "[1]", '["/usr/bin/"]', '["/usr//bin/x"]']
)
def test_a_program_to_ignore_is_named_by_its_path(tmp_path: Path, value: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[diagnostics]\nignore_processes = {value}\n")
    with pytest.raises(ConfigError, match="absolute paths"):
        load_config(path)
