"""
docs/findings.md, made from the catalogue:

    python -m tests.findings_page        writes it

A test keeps the two in step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from vitald.catalog import Catalog, load_catalog
from vitald.catalog.rules import FaultClass, Rule
from vitald.model.words import Action

PAGE = Path(__file__).resolve().parent.parent / "docs/findings.md"

# Kinds in the order in which they are looked for, under the words that somebody would use.
_CHAPTERS = {
    "GPUs, by the kernel log": (
        "xid",
        "gpu_lost",
        "gpu_init_failed",
        "reset_required",
        "nvlink",
        "uvm",
        "gsp",
    ),
    "NVSwitches": ("sxid",),
    "GPUs, by NVML": ("nvml",),
    "Trainium and Inferentia": ("neuron",),
    "PCI Express": ("aer", "iommu", "pci"),
    "Network": ("ib", "efa", "nic", "net", "network"),
    "Host": ("mce", "edac", "oom", "hung_task", "lockup", "thermal", "host", "clock", "unit"),
    "Disks and file systems": ("fs", "nvme"),
    "What should be here": ("expect",),
    "Diagnostics": ("dcgm", "dcgm_health", "diagnostic", "efa_loopback", "nccl", "nccom"),
    "vitald itself": ("vitald",),
}

_OTHERS = "Other hardware"  # kinds that no chapter names

_TOP = """\
# What each finding means, and what to do

Generated from the catalogue by `python -m tests.findings_page`. On a node, `vitald explain CODE`
shows more: the meaning, the cases, the source and what your configuration changes; `vitald why ID`
shows how a finding came to be.

Codes are grouped by what they require ([who acts on it](what-to-do.md#by-action)) and by what
closes them. After "or": depending on the line itself, or once the fault is confirmed; `vitald
status` shows which one applies. A fault that returns after its remedy requires a stronger one. A
named person may close any finding: `vitald clear ID --reason TEXT`.

A code that is not here opens no finding, or is unknown: unknown codes are kept, shown and require
`inspect`. Each code has an anchor for links: that of xid/79 is `#xid-79`.
"""


def page(catalog: Catalog) -> str:
    """The whole document."""
    asked = [rule.code.partition("/")[0] for rule in catalog.rules.values() if _asks(rule)]
    named = {kind for kinds in _CHAPTERS.values() for kind in kinds}
    others = tuple(kind for kind in dict.fromkeys(asked) if kind not in named)
    chapters = _CHAPTERS | ({_OTHERS: others} if others else {})
    parts = [_TOP]
    for title, chapter in chapters.items():
        rules = [
            rule
            for kind in chapter
            for rule in catalog.rules.values()
            if rule.code.startswith(f"{kind}/") and _asks(rule)
        ]
        parts.append(
            f"## {title}\n\n{_switches(rules) if chapter == ('sxid',) else _groups(rules)}"
        )
    unused = [rule for rule in catalog.rules.values() if can_open(rule) and not _asks(rule)]
    parts.append(f"## Not printed by current drivers\n\n{_groups(unused)}")
    return "\n".join(parts)


def can_open(rule: Rule) -> bool:
    """Whether it can become a finding."""
    return any(action is not Action.NONE for action in (rule.action, *_others(rule)))


def make_anchor(code: str) -> str:
    """The anchor of a code: alerts make the same of the labels `kind` and `code`."""
    return code.replace("/", "-")


def _asks(rule: Rule) -> bool:
    """Whether it can become a finding, on a driver of today."""
    return can_open(rule) and rule.fault_class is not FaultClass.UNUSED


def _others(rule: Rule) -> list[Action]:
    """What else its cases may ask for, the mildest first."""
    said = {case.action or case.at_least or Action.NONE for case in rule.cases} - {
        rule.action,
        Action.NONE,
    }
    return sorted(said, key=lambda action: action.rank)


def _groups(rules: Iterable[Rule]) -> str:
    """The codes by what they require and what closes them, the strongest first; advice that several
    have is written once."""
    groups: dict[str, dict[str, list[Rule]]] = {}
    for rule in sorted(rules, key=_strength, reverse=True):
        ends = ", ".join(rule.clears.list_phrases()) or "a named person only"
        alike = groups.setdefault(f"**{_asked(rule)}**, closed by {ends}:", {})
        alike.setdefault(" ".join(rule.advice.split()), []).append(rule)
    parts = []
    for heading, by_advice in groups.items():
        lines = [line for advice, alike in by_advice.items() for line in _lines(advice, alike)]
        parts.append("\n".join([heading, "", *lines, ""]))
    return "\n".join(parts)


def _strength(rule: Rule) -> int:
    return max(action.rank for action in (rule.action, *_others(rule)))


def _asked(rule: Rule) -> str:
    first = [f"`{rule.action.value}`{rule.when.phrase}"] if rule.action is not Action.NONE else []
    return " or ".join([*first, *(f"`{action.value}`" for action in _others(rule))])


def _lines(advice: str, rules: Sequence[Rule]) -> list[str]:
    if not advice:
        return [f"- {_name(rule)}" for rule in rules]
    return [f"- {'; '.join(map(_name, rules))}. {advice}"]


def _name(rule: Rule) -> str:
    return f"{_link(rule.code)}{rule.code}: {rule.title}"


def _link(code: str) -> str:
    return f'<a id="{make_anchor(code)}"></a>'


def _switches(rules: Iterable[Rule]) -> str:
    """The switches have hundreds of codes, of which the table says little but what to do."""
    rows = [
        "Grouped by what the catalogue requires; a line that calls itself fatal requires at least a",
        "reset. `vitald explain sxid/12020` shows what each one is.",
        *("", "| do | SXid |", "|---|---|"),
    ]
    listed = list(rules)
    for action in sorted(Action, key=lambda action: -action.rank):
        numbers = [
            _link(rule.code) + rule.code.partition("/")[2]
            for rule in listed
            if rule.action is action
        ]
        if numbers:
            rows.append(
                f"| {f'`{action.value}`' if action is not Action.NONE else 'only if fatal'} |"
                f" {' '.join(numbers)} |"
            )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(load_catalog()), encoding="utf-8")
