"""Models of GPUs, from profiles.toml: how many a node has, and what each of them answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vitald import tomlfile
from vitald.simulator.pci_tree import NVIDIA
from vitald.simulator.state_file import check_gpu_key, format_value

PROFILES = Path(__file__).with_name("profiles.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A model. `keys`: what every GPU of it answers. `device`: the PCI device id."""

    gpus: int
    switches: int
    device: int
    links: int
    keys: dict[str, str]


def list_profiles() -> list[str]:
    """The names of the models."""
    return [name for name in tomlfile.read_toml(PROFILES)[1] if not name.startswith("_")]


def read_profile(name: str) -> Profile:
    """A model by its name. Raises ValueError."""
    names = list_profiles()
    if name not in names:
        suggestion = tomlfile.suggest_word(name, names)
        raise ValueError(f"there is no profile {name!r}{suggestion}: {', '.join(names)}")
    return _build_profile(_merge_tables(tomlfile.read_toml(PROFILES)[1], name))


def _merge_tables(tables: tomlfile.Table, name: str) -> tomlfile.Table:
    """A table with what it inherits from the one that it is `like`; the keys of its GPUs flat, as
    the state file has them.
    """
    own = tables[name]
    assert isinstance(own, dict)
    base = _merge_tables(tables, str(own["like"])) if "like" in own else {}
    keys = {**_as_table(base.get("gpu", {})), **_flatten_keys(_as_table(own.get("gpu", {})))}
    return {**base, **own, "gpu": keys}


def _build_profile(table: tomlfile.Table) -> Profile:
    def read_number(name: str) -> int:
        return int(str(table.get(name, 0)))

    links, device = read_number("links"), read_number("device")
    keys = {f"fi.{field}.0": "0" for field in _expand_ids(table.get("zeros"))}
    keys |= {
        f"ecc.{kind}.{since}.{where}": "0"
        for kind in ("cor", "unc")
        for since in ("vol", "agg")
        for where in _as_texts(table.get("ecc"))
    }
    version, remote = str(read_number("link_version")), str(read_number("link_remote"))
    for link in range(links):
        keys |= _build_link_keys(table, link, version, remote)
    keys |= {key: format_value(key, value) for key, value in _as_table(table["gpu"]).items()}
    keys |= {"fi.91.0": f"u32:{links}", "pci_device_id": f"0x{device << 16 | NVIDIA:08x}"}
    return Profile(
        gpus=read_number("gpus"),
        switches=read_number("switches"),
        device=device,
        links=links,
        keys={check_gpu_key(key): value for key, value in keys.items()},
    )


def _build_link_keys(table: tomlfile.Table, link: int, version: str, remote: str) -> dict[str, str]:
    """What an NVLink answers: its state and its counters."""
    values = _as_table(table.get("link_values", {}))
    return {
        f"nvlink.{link}.state": "1",
        f"nvlink.{link}.version": version,
        f"nvlink.{link}.remote": remote,
        **{f"nvlink.{link}.err.{kind}": "0" for kind in _expand_ids(table.get("link_errors"))},
        **{f"fi.{field}.{link}": "0" for field in _expand_ids(table.get("link_fields"))},
        **{f"fi.{field}.{link}": str(value) for field, value in values.items()},
    }


def _flatten_keys(table: tomlfile.Table, prefix: str = "") -> tomlfile.Table:
    """`pcie.gen = 5` is a table in a table to TOML, and one key here."""
    flat: tomlfile.Table = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flatten_keys(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _as_table(value: object) -> tomlfile.Table:
    assert isinstance(value, dict)
    return value


def _as_texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _expand_ids(value: object) -> Iterable[int]:
    """Field ids, written as `[74, "32-59"]`."""
    for item in _as_texts(value):
        first, _, last = item.partition("-")
        yield from range(int(first), int(last or first) + 1)
