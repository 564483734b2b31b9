"""
Correlation rules: which codes belong together, which of them is the cause, and what their
co-occurrence changes.

    causes        in order: of two that occur, the earlier one in the list is the root
    consequences  belong to the incident and keep their own requirement
    suppressed    have no finding beside a cause that requires at least as much

The driver's recommendations among the consequences are never the root.

A code may have roles in several rules: suppressed in one, a cause in another. If the line decides
which, an alias gives such lines a name of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from vitald import tomlfile
from vitald.model.event import Fields
from vitald.model.words import Action, When


class Role(Enum):
    """The members' order is the order in which a root is chosen."""

    CAUSE = "cause"
    CONSEQUENCE = "consequence"
    SUPPRESSED = "suppressed"
    DRIVER_RECOMMENDATION = "driver_recommendation"

    @property
    def order(self) -> int:
        return _RANK[self]


_RANK = {role: rank for rank, role in enumerate(Role)}


class Reach(Enum):
    """Which other components a cause reaches."""

    DEVICE = "device"  # its own component, the port upstream, devices behind it
    FABRIC = "fabric"  # every GPU and NVSwitch of the node, or every Neuron device
    PROCESS = "process"  # events that name the same process
    NODE = "node"  # events of the node as a whole, caused by any of its components

    @property
    def crosses_devices(self) -> bool:
        """Whether it reaches other devices: a rule about the device alone has precedence."""
        return self in (Reach.FABRIC, Reach.NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooccurrence:
    """What other members of the incident change for a finding. `beside` names them; one of them is
    enough.
    """

    code: str
    beside: tuple[str, ...]
    action: Action | None = None
    when: When | None = None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationRule:
    """One rule: an entry of `correlation.toml`."""

    name: str
    title: str
    reach: Reach
    within_s: float  # longest time from one member to the next
    early_s: float  # longest time that a consequence may be printed before its cause
    source: str
    causes: tuple[str, ...]
    consequences: tuple[str, ...] = ()
    suppressed: tuple[str, ...] = ()
    apart: bool = False  # it joins consequences to their cause, and no two causes
    cooccurrences: tuple[Cooccurrence, ...] = ()

    def list_partners(self, code: str) -> tuple[str, ...]:
        """The codes with which this one may share an incident by this rule."""
        others = (*self.consequences, *self.suppressed)
        if not (self.apart and code in self.causes):
            return (*self.causes, *others)
        return tuple(name for name in others if name not in self.causes)


@dataclass(frozen=True, slots=True)
class IncidentRole:
    """The role of a code in a rule."""

    rule: CorrelationRule
    role: Role
    order: tuple[int, int, int]  # role, rule, position in the list
    exact: bool = True  # the code itself is listed, not its kind


@dataclass(frozen=True, slots=True)
class Alias:
    """A name for the lines of a code in which every field has one of its values, as in a `Case`."""

    name: str
    code: str
    holds: Collection[tuple[str, tuple[object, ...]]]

    def matches(self, fields: Fields) -> bool:
        for name, wanted in self.holds:
            value = fields.get(name)
            if not any(item in wanted for item in (value if isinstance(value, list) else [value])):
                return False
        return True


@dataclass(slots=True)
class CorrelationRules:
    """All rules, indexed by their codes. `kind/*` matches every code of a kind."""

    rules: tuple[CorrelationRule, ...] = ()
    _places: dict[str, tuple[IncidentRole, ...]] = field(default_factory=dict)
    _kinds: dict[str, tuple[IncidentRole, ...]] = field(default_factory=dict)
    _aliases: dict[str, tuple[Alias, ...]] = field(default_factory=dict)
    _roles: dict[str, Mapping[str, frozenset[Role]]] = field(default_factory=dict)

    @classmethod
    def from_rules(
        cls,
        rules: Iterable[CorrelationRule],
        aliases: Iterable[Alias] = (),
        driver_recommendations: Collection[str] = (),
    ) -> CorrelationRules:
        correlation = cls(tuple(rules))
        for alias in aliases:
            correlation._aliases[alias.code] = (*correlation._aliases.get(alias.code, ()), alias)
        listed: dict[str, list[IncidentRole]] = {}
        for number, rule in enumerate(correlation.rules):
            for role, names in (
                (Role.CAUSE, rule.causes),
                (Role.CONSEQUENCE, rule.consequences),
                (Role.SUPPRESSED, rule.suppressed),
            ):
                for position, name in enumerate(names):
                    recommends = name in driver_recommendations and role is Role.CONSEQUENCE
                    own = Role.DRIVER_RECOMMENDATION if recommends else role
                    listed.setdefault(name, []).append(
                        IncidentRole(
                            rule, own, (own.order, number, position), not name.endswith("/*")
                        )
                    )
        for name, places in listed.items():
            kind, _, code = name.partition("/")
            (correlation._kinds if code == "*" else correlation._places)[
                kind if code == "*" else name
            ] = tuple(places)
        for name, own_places in tuple(correlation._places.items()):
            seen = {place.rule.name for place in own_places}
            of_kind = (
                place
                for place in correlation._kinds.get(name.partition("/")[0], ())
                if place.rule.name not in seen
            )
            correlation._places[name] = (*own_places, *of_kind)
        return correlation

    def find_name(self, code: str, fields: Fields) -> str:
        """Name of an event in the rules: its code, or the alias that matches."""
        return next(
            (alias.name for alias in self._aliases.get(code, ()) if alias.matches(fields)), code
        )

    def find_roles(self, name: str) -> tuple[IncidentRole, ...]:
        places = self._places.get(name)
        return places if places is not None else self._kinds.get(name.partition("/")[0], ())

    def find_role_sets(self, name: str) -> Mapping[str, frozenset[Role]]:
        """The roles of a code by the names of rules."""
        key = name if name in self._places else f"{name.partition('/')[0]}/*"
        known = self._roles.get(key)
        if known is None:
            found: dict[str, set[Role]] = {}
            for place in self.find_roles(name):
                found.setdefault(place.rule.name, set()).add(place.role)
            known = self._roles[key] = {rule: frozenset(roles) for rule, roles in found.items()}
        return known

    def is_cause(self, name: str) -> bool:
        """Whether a rule lists it as a cause: it begins an incident even if it requires nothing."""
        return any(place.role is Role.CAUSE and place.exact for place in self.find_roles(name))

    def rank_name(self, name: str, rule: str) -> tuple[int, int, int, int]:
        """Sort key of the members of an incident: the root has the lowest. Codes of the incident's
        own rule come before others.
        """
        own = [place.order for place in self.find_roles(name) if place.rule.name == rule]
        if own:
            return (0, *min(own))
        return (
            1,
            *min((place.order for place in self.find_roles(name)), default=(len(Role), 0, 0)),
        )

    def find_index(self, name: str) -> int:
        return next(
            (number for number, rule in enumerate(self.rules) if rule.name == name),
            len(self.rules),
        )


def read_aliases(tables: Mapping[str, Mapping[str, object]]) -> list[Alias]:
    """From `[alias."NAME"]` tables. Raises ValueError, KeyError."""
    made = []
    for name, table in tables.items():
        tomlfile.refuse_unknown_keys(table, ("code", "where"))
        where = table["where"]
        if not isinstance(where, dict) or not where:
            raise ValueError(f"{name}: where: expected {{ field = value }}")
        holds = tuple(
            (key, tuple(value) if isinstance(value, list) else (value,))
            for key, value in where.items()
        )
        made.append(Alias(name, str(table["code"]), holds))
    return made
