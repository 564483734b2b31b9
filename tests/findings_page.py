"""
docs/findings.md, made from the catalogue:

    python -m tests.findings_page        writes it

A test keeps the two in step.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vitald.catalog import Catalog, load
from vitald.catalog.rules import FaultClass, Rule
from vitald.model import Action

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

Made from the catalogue by `python -m tests.findings_page`, for reading without a node at hand. On a node, `vitald explain CODE` says
more: the meaning, the cases, whose advice it is, and what your configuration changes. `vitald why ID` says how this very finding came to be.

- **do** is what the finding asks for ([who acts on it](operations.md#what-to-do)). After "or": by what the line itself says, or when the fault was confirmed; `vitald status`
  has the one that counts now. A fault that returns after its remedy asks for a stronger one.
- **ends with** is the evidence that closes it. A named person always may: `vitald clear ID --reason TEXT`.
- A code that is not here makes no finding, is a number that current drivers do not print, or is unknown: that is kept, shown, and asks somebody to look (`inspect`).
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
        parts.append(f"## {title}\n\n{_switches(rules) if chapter == ('sxid',) else _table(rules)}")
    return "\n".join(parts)


def _asks(rule: Rule) -> bool:
    """Whether it can become a finding, on a driver of today."""
    return rule.fault_class is not FaultClass.UNUSED and any(
        action is not Action.NONE for action in (rule.action, *_others(rule))
    )


def _others(rule: Rule) -> list[Action]:
    """What else its cases may ask for, the mildest first."""
    said = {case.action or case.at_least or Action.NONE for case in rule.cases} - {
        rule.action,
        Action.NONE,
    }
    return sorted(said, key=lambda action: action.rank)


def _table(rules: Iterable[Rule]) -> str:
    rows = ["| code | what is wrong | do | ends with | and |", "|---|---|---|---|---|"]
    for rule in rules:
        after = rule.when.words
        first = [f"`{rule.action.value}`{after}"] if rule.action is not Action.NONE else []
        asked = " or ".join([*first, *(f"`{action.value}`" for action in _others(rule))])
        cells = (
            rule.code,
            rule.title,
            asked,
            ", ".join(rule.clears.words()) or "a person's word",
            rule.advice,
        )
        rows.append(
            "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
        )
    return "\n".join(rows) + "\n"


def _switches(rules: Iterable[Rule]) -> str:
    """The switches have hundreds of codes, of which the table says little but what to do."""
    rows = [
        (
            "By what the table asks for; where the line calls itself fatal it is a reset at least."
            " `vitald explain sxid/12020` says what each one is."
        ),
        *("", "| do | SXid |", "|---|---|"),
    ]
    listed = list(rules)
    for action in sorted(Action, key=lambda action: -action.rank):
        numbers = [rule.code.partition("/")[2] for rule in listed if rule.action is action]
        if numbers:
            rows.append(
                f"| {f'`{action.value}`' if action is not Action.NONE else 'only if fatal'} |"
                f" {' '.join(numbers)} |"
            )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(load()), encoding="utf-8")
