"""
Readers of the catalogue's other tables: escalation policies, correlation rules with their aliases,
the lemon score, instance types.

Each mistake is appended to `errors` with its file and table, and reading continues.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from vitald import tomlfile
from vitald.catalog.catalog import InstanceType
from vitald.catalog.correlation import (
    Cooccurrence,
    CorrelationRule,
    CorrelationRules,
    Reach,
    read_aliases,
)
from vitald.catalog.escalation import EscalationPolicy, EscalationStep, LemonScoring
from vitald.model.component import MarkKind
from vitald.model.words import Action, When

# The files, and the sections of each
FILES = {
    "escalation": ("escalation",),
    "correlation": ("alias", "correlation"),
    "lemon": ("lemon",),
    "instances": ("instance",),
}
_STEPS = ("of", "processes", "waited", "times")  # conditions of a step
_STEP_KEYS = (*_STEPS, "within", "action", "when", "remedies", "same")
_CORRELATION_KEYS = (
    *("title", "reach", "within", "early", "source", "causes", "consequences", "suppressed"),
    *("apart", "cooccurrences"),
)
_COOCCURRENCE_KEYS = ("code", "beside", "action", "when", "reason")
_LEMON_KEYS = ("window", "half_life", "suspect", "job_before", "job_after", "weights")


def read_escalation_policies(
    tables: tomlfile.Table, errors: list[str]
) -> dict[str, EscalationPolicy]:
    """The escalation policies of `escalation.toml`, by name."""
    escalation_policies: dict[str, EscalationPolicy] = {}
    for name, table in _list_tables(tables, "escalation", errors):
        steps: list[EscalationStep] = []
        try:
            tomlfile.refuse_unknown_keys(table, ("steps",))
            for step in table["steps"]:
                tomlfile.refuse_unknown_keys(step, _STEP_KEYS)
                if sum(key in step for key in _STEPS) != 1:
                    raise ValueError(f"a step needs one of {', '.join(_STEPS)}")
                if min(step.get("remedies", 1), step.get("processes", 1), step.get("times", 1)) < 1:
                    raise ValueError("remedies, processes and times count from 1")
                if step["action"] == Action.REPLACE_NODE.value and "of" not in step:
                    raise ValueError(
                        "a step to replace_node needs `of`: a remedy that was completed, and failed"
                    )
                steps.append(
                    EscalationStep(
                        within_s=(
                            0.0
                            if step.keys() & {"waited", "times"}
                            else tomlfile.parse_duration(step["within"])
                        ),
                        action=Action(step["action"]),
                        when=When(step.get("when", "now")),
                        of=Action(step["of"]) if "of" in step else None,
                        remedies=int(step.get("remedies", 1)),
                        processes=int(step.get("processes", 0)),
                        waited_s=tomlfile.parse_duration(step["waited"])
                        if "waited" in step
                        else 0.0,
                        times=int(step.get("times", 0)),
                        same=tuple(step.get("same", ())),
                    )
                )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            errors.append(f"escalation.toml: [escalation.{name}]: {_describe_error(error)}")
        else:
            escalation_policies[name] = EscalationPolicy(name, tuple(steps))
    return escalation_policies


def read_correlation(
    tables: tomlfile.Table,
    codes: Collection[str],
    driver_recommendations: Collection[str],
    errors: list[str],
) -> CorrelationRules:
    """The correlation rules and aliases of `correlation.toml`. `codes`: the entries that they may
    name; `driver_recommendations`: those that are the driver's recommendations.
    """
    rules: list[CorrelationRule] = []
    kinds = {code.partition("/")[0] for code in codes}
    try:
        aliases = (
            read_aliases(dict(_list_tables(tables, "alias", errors))) if "alias" in tables else []
        )
    except (KeyError, ValueError) as error:
        errors.append(f"correlation.toml: [alias]: {_describe_error(error)}")
        aliases = []
    known = {*codes, *(alias.name for alias in aliases)}
    for name, table in _list_tables(tables, "correlation", errors):
        try:
            rule = _read_correlation_rule(name, table)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            errors.append(f"correlation.toml: [correlation.{name}]: {_describe_error(error)}")
            continue
        rules.append(rule)
        for code in sorted(_list_named_codes(rule)):
            kind, _, number = code.partition("/")
            is_known = kind in kinds if number == "*" else code in known
            if not is_known:
                errors.append(
                    f"correlation.toml: [correlation.{name}]: there is no entry"
                    f" {code!r}{tomlfile.suggest_word(code, known)}"
                )
    return CorrelationRules.from_rules(
        rules,
        aliases,
        {
            *driver_recommendations,
            *(alias.name for alias in aliases if alias.code in driver_recommendations),
        },
    )


def _read_correlation_rule(name: str, table: dict[str, Any]) -> CorrelationRule:
    tomlfile.refuse_unknown_keys(table, _CORRELATION_KEYS)
    for entry in table.get("cooccurrences", ()):
        tomlfile.refuse_unknown_keys(entry, _COOCCURRENCE_KEYS)
    return CorrelationRule(
        name=name,
        title=table["title"],
        reach=Reach(table["reach"]),
        within_s=tomlfile.parse_duration(table["within"]),
        early_s=tomlfile.parse_duration(table["early"]),
        source=table["source"],
        causes=tuple(table["causes"]),
        consequences=tuple(table.get("consequences", ())),
        suppressed=tuple(table.get("suppressed", ())),
        apart=table.get("apart", False) is True,
        cooccurrences=tuple(
            Cooccurrence(
                code=entry["code"],
                beside=tuple(entry["beside"]),
                action=Action(entry["action"]) if "action" in entry else None,
                when=When(entry["when"]) if "when" in entry else None,
                reason=entry["reason"],
            )
            for entry in table.get("cooccurrences", ())
        ),
    )


def _list_named_codes(rule: CorrelationRule) -> set[str]:
    codes = {*rule.causes, *rule.consequences, *rule.suppressed}
    for cooccurrence in rule.cooccurrences:
        codes |= {cooccurrence.code, *cooccurrence.beside}
    return codes


def read_lemon(tables: tomlfile.Table | None, errors: list[str]) -> LemonScoring:
    """The parameters of the lemon score in `lemon.toml`."""
    if tables is None:
        return LemonScoring()
    try:
        table: dict[str, Any] = dict(_list_tables({"lemon": tables}, "lemon", errors))["lemon"]
        tomlfile.refuse_unknown_keys(table, _LEMON_KEYS)
        return LemonScoring(
            window_s=tomlfile.parse_duration(table["window"]),
            half_life_s=tomlfile.parse_duration(table["half_life"]),
            suspect=float(table["suspect"]),
            job_before_s=tomlfile.parse_duration(table["job_before"]),
            job_after_s=tomlfile.parse_duration(table["job_after"]),
            weights={MarkKind(kind): float(weight) for kind, weight in table["weights"].items()},
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        errors.append(f"lemon.toml: [lemon]: {_describe_error(error)}")
        return LemonScoring()


def read_instances(tables: tomlfile.Table | None, errors: list[str]) -> dict[str, InstanceType]:
    """The instance types of `instances.toml`, by name."""
    known = [item.name for item in fields(InstanceType)]
    instances: dict[str, InstanceType] = {}
    for name, table in _list_tables(
        tables if tables is not None else {"instance": {}}, "instance", errors
    ):
        wrong = [
            f"{key}: unknown key{tomlfile.suggest_word(key, known)}"
            for key in table
            if key not in known
        ]
        wrong += [
            f"{key}: expected a number above 0, found {count!r}"
            for key, count in table.items()
            if not _is_positive(count)
        ]
        errors += [f"instances.toml: [instance.{name}]: {what}" for what in wrong]
        if not wrong:
            instances[name] = InstanceType(**table)
    return instances


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _list_tables(
    tables: tomlfile.Table, section: str, errors: list[str]
) -> list[tuple[str, dict[str, Any]]]:
    """The tables of `[section.NAME]`."""
    found = tables.get(section)
    if not isinstance(found, dict) or not all(isinstance(table, dict) for table in found.values()):
        errors.append(f"[{section}]: expected tables such as [{section}.NAME]")
        return []
    return list(found.items())


def _describe_error(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
