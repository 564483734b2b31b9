"""
What a message of the diagnostic means, by the catalogue.

The error's number decides; without one, the severity that is printed; without that, the text that
the message begins with. An unknown message counts as a failure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from vitald.catalog import Catalog
from vitald.catalog.diagnosis import Diagnosis
from vitald.catalog.rules import Rule
from vitald.diagnostics.dcgm.document import Message
from vitald.model.words import Action, Remedy

KIND = "dcgm"
LOST, UNCLEAR, ENGINE_DOWN = f"{KIND}/gpu_lost", f"{KIND}/unclear", f"{KIND}/engine_down"

# `GPU 3 `, often twice, before the texts of tests up to 3.x.
_PREFIX = re.compile(r"(?:gpu \d{1,4} )+")
_NUMBER = re.compile(r"(?<![a-z0-9_])\d+(?:\.\d+)?")
_XID = re.compile(r"\bxid (\d{1,4})\b")
_REMEDIES = {
    Action.RESET_DEVICE: Remedy.RESET_GPU,
    Action.REBOOT_NODE: Remedy.REBOOT,
    Action.REPLACE_NODE: Remedy.REPLACE,
}
_CAUTIOUS = Diagnosis(remedy=Remedy.INVESTIGATE, confirm=True)


@dataclass(frozen=True, slots=True)
class Meaning:
    """`confirm`: as in Fault. `of_hardware`: the hardware is at fault, not settings."""

    code: str
    title: str
    remedy: Remedy
    confirm: bool
    of_hardware: bool


class Meanings:
    """The catalogue's entries of the kind `dcgm`, by number and by text."""

    def __init__(self, catalog: Catalog) -> None:
        self._rules = {
            code: rule
            for code, rule in catalog.rules.items()
            if rule.kind == KIND and rule.diagnostic is not None
        }
        self._xids = {
            code: rule
            for code, rule in catalog.rules.items()
            if rule.kind == "xid" and rule.action.makes_unfit
        }
        self._default = catalog.find_rule(f"{KIND}/default")
        phrases = [
            (phrase.split("*"), code)
            for code, rule in self._rules.items()
            for phrase in _get_diagnosis(rule).phrases
        ]
        # Of several that match, the one with the longest beginning wins, then the longest.
        self._phrases = sorted(
            phrases, key=lambda phrase: (-len(phrase[0][0]), -sum(map(len, phrase[0])))
        )

    def get_entry(self, code: str) -> Meaning:
        """The meaning of a code; a cautious one if the catalogue does not have it."""
        rule = self._rules.get(code)
        if rule is None:
            return Meaning(code, code, Remedy.INVESTIGATE, True, True)
        return _make_meaning(code, rule)

    def find_meaning(self, message: Message) -> Meaning:
        """The meaning of one message. An unknown error is a failure with a cautious remedy."""
        number = message.error_id
        code = f"{KIND}/{number}" if number is not None else ""
        if code in self._rules:
            return self._resolve_rule(code, message.text)
        if message.severity is None and number is None:
            by_text = self.find_by_text(message.text)
            if by_text is not None:
                return by_text
            return replace(self.get_entry(UNCLEAR), title=_describe_unknown(message.text))
        default = _get_diagnosis(self._default)
        remedy = default.remedy
        if message.severity is not None:
            remedy = default.severity.get(message.severity, remedy)
        return Meaning(
            code or UNCLEAR,
            _describe_unknown(message.text),
            remedy,
            default.confirm,
            remedy is not Remedy.FIX_CONFIG,
        )

    def find_by_text(self, text: str) -> Meaning | None:
        """The meaning of the words that a text begins with; None if they are unknown."""
        lower = text.lower()
        without = _PREFIX.match(lower)
        texts = [_NUMBER.sub("#", lower)]
        if without is not None:
            rest = _NUMBER.sub("#", lower[without.end() :])
            texts += [rest, f"gpu # {rest}"]
        code = next(
            (
                code
                for parts, code in self._phrases
                if any(_matches_parts(variant, parts) for variant in texts)
            ),
            None,
        )
        return self._resolve_rule(code, text) if code is not None else None

    def _resolve_rule(self, code: str, text: str) -> Meaning:
        rule = self._rules[code]
        lower = text.lower()
        if (
            _get_diagnosis(rule).xid
            and (named := _XID.search(lower)) is not None
            and (xid := self._xids.get(f"xid/{named[1]}")) is not None
        ):
            return Meaning(xid.code, xid.title, _REMEDIES[xid.action], False, True)
        for other in _get_diagnosis(rule).alternatives:
            if other.code in self._rules and any(words in lower for words in other.contains):
                return _make_meaning(other.code, self._rules[other.code])
        return _make_meaning(code, rule)


def _describe_unknown(text: str) -> str:
    return f"Not a known failure: {text[:120]}" if text else "A test failed and does not say why"


def _get_diagnosis(rule: Rule) -> Diagnosis:
    return rule.diagnostic or _CAUTIOUS


def _make_meaning(code: str, rule: Rule) -> Meaning:
    diagnosis = _get_diagnosis(rule)
    return Meaning(
        code, rule.title, diagnosis.remedy, diagnosis.confirm, diagnosis.concerns_hardware
    )


def _matches_parts(text: str, parts: list[str]) -> bool:
    """Whether the text begins with the first part, and the others follow in this order."""
    if not text.startswith(parts[0]):
        return False
    at = len(parts[0])
    for part in parts[1:]:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True
