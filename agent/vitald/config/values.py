"""What the configuration file sets, by the class of each section's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

S = TypeVar("S")
Groups = Mapping[type[Any], Mapping[str, Any]]


class Config:
    """The settings of sections. A section that was not given has its defaults.

    `groups`: of each class of a group, the sections by their names. `classes`: those of all
    sections and groups that were read; None for any. `settings_hash`: of what the file sets; two
    configurations may be equal without it.
    """

    def __init__(
        self,
        *settings: object,
        groups: Groups | None = None,
        classes: frozenset[type[Any]] | None = None,
        settings_hash: int = 0,
    ) -> None:
        self._settings: dict[type[Any], Any] = {type(each): each for each in settings}
        self._classes = classes
        self._groups = {class_: named for class_, named in (groups or {}).items() if named}
        self.settings_hash = settings_hash

    def __getitem__(self, class_: type[S]) -> S:
        """Raises KeyError for a section that was not read: its defaults may not be in force."""
        self._require_read(class_)
        if class_ not in self._settings:
            self._settings[class_] = class_()
        found: S = self._settings[class_]
        return found

    def get_group(self, class_: type[S]) -> Mapping[str, S]:
        """The sections of a group, by their names. Raises KeyError, likewise."""
        self._require_read(class_)
        return self._groups.get(class_, {})

    def replace(self, *settings: object, settings_hash: int | None = None) -> Config:
        """The same configuration with other settings of some sections."""
        return Config(
            *(self._settings | {type(each): each for each in settings}).values(),
            groups=self._groups,
            classes=self._classes,
            settings_hash=self.settings_hash if settings_hash is None else settings_hash,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return NotImplemented
        return self._list_set() == other._list_set() and self._groups == other._groups

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Config({', '.join(map(repr, self._list_set().values()))}, groups={self._groups})"

    def _require_read(self, class_: type[Any]) -> None:
        if self._classes is not None and class_ not in self._classes:
            raise KeyError(f"{class_.__name__} is not among the sections that were read")

    def _list_set(self) -> dict[type[Any], Any]:
        """Of the sections that are not as by default."""
        return {class_: each for class_, each in self._settings.items() if each != class_()}
