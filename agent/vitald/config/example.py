"""`config.example.toml`: every key of the configuration file with its default."""

from __future__ import annotations

from collections.abc import Iterator

from vitald.config.section import Section, TakesEffect
from vitald.config.sections import GROUPS, SECTIONS

_HEAD = "# vitald: every key with its default. Check a file of yours with: vitald config check FILE"


def format_example() -> str:
    """The file: every key, its default, a line on what it does."""
    lines = [_HEAD, ""]
    for name, section in SECTIONS.items():
        lines += _describe_section(section, f"[{name}]")
    for name, group in GROUPS.items():
        lines += (
            line if line.startswith("# ") or not line else f"#{line}"
            for line in _describe_section(group, f"[{name}.{group.example}]")
        )
    return "\n".join(lines)


def _describe_section(section: Section, header: str) -> Iterator[str]:
    class_ = section.settings
    yield f"# {' '.join(str(class_.__doc__).split())}"
    yield header
    for key, (attribute, setting) in section.list_settings().items():
        value = getattr(class_(), attribute)
        after = (
            " Takes effect on a reload." if section.find_effect(key) is TakesEffect.RELOAD else ""
        )
        yield f"# {setting.help}{after}"
        written = _format_time(value) if attribute.endswith("_s") else _format_value(value)
        yield section.examples.get(key) or f"{key} = {written}"
        yield ""


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, (bool, int)) else f'"{value}"'


def _format_time(seconds: float) -> str:
    """A duration as it is written in the file."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0 and (seconds > length or unit != "m"):
            return f'"{seconds / length:g}{unit}"'
    return f'"{seconds:g}s"' if seconds else '"off"'
