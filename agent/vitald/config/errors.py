"""The mistakes in a configuration file, each with its file, line and key."""

from __future__ import annotations

from functools import cached_property

from vitald import tomlfile


class ConfigError(Exception):
    """The file is wrong: exit code 78 (EX_CONFIG). `errors` holds every mistake, each with file,
    line and key.
    """

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


class FileReport:
    """The mistakes that were found in a file."""

    def __init__(self, name: str, text: str) -> None:
        self.errors: list[str] = []
        self._name = name
        self._text = text

    def add_error(self, section: str, key: str, what: str) -> None:
        name = f"[{section}]{' ' + key if key else ''}"
        self.add_error_at((*section.split("."), key), f"{name}: {what}")

    def add_error_at(self, path: tuple[str, ...], text: str) -> None:
        """A text that names the key; `path` is where it stands."""
        self.errors.append(f"{self._find_place(path)}: {text}")

    @cached_property
    def _lines(self) -> dict[tuple[str, ...], int]:
        return tomlfile.index_lines(self._text)

    def _find_place(self, path: tuple[str, ...]) -> str:
        """The file and the line of a table or a key, or of the closest table that has it."""
        outward = (self._lines.get(path[:length]) for length in range(len(path), 0, -1))
        line = next(filter(None, outward), None)
        return f"{self._name}:{line}" if line is not None else self._name
