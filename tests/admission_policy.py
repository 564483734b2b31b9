"""
What the admission policy of the publisher lets it write, from the code that writes it.

    .venv/bin/python -m tests.admission_policy    writes both files again

`packaging/kubernetes/publish/admission-policy.yaml` is the source of everything but its variables
between the two marks; the chart's template is that file with the values of the chart in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tests.harness import ROOT
from vitald.model.words import Status
from vitald.publish.kubernetes.desired import (
    HEARTBEAT_STALE,
    MAX_ANNOTATION_BYTES,
    MAX_MESSAGE_BYTES,
    OWN,
    ConditionStatus,
    get_annotation_key,
    list_label_keys,
    list_own_types,
)
from vitald.publish.kubernetes.profiles.hyperpod import ANNOTATIONS, HEALTH_STATUS, LABELS, WORDS
from vitald.publish.kubernetes.sets import CONDITION_PROFILES, HYPERPOD, list_profile_names
from vitald.publish.kubernetes.settings import TAINT_EFFECTS
from vitald.publish.kubernetes.sweep import list_stale_words
from vitald.publish.kubernetes.taint import WORDS as ACTIONS
from vitald.publish.kubernetes.taint import get_taint_key

MANIFEST = ROOT / "packaging/kubernetes/publish/admission-policy.yaml"
TEMPLATE = ROOT / "packaging/helm/vitald/templates/admission-policy.yaml"
HOW = ".venv/bin/python -m tests.admission_policy"
_BEGIN, _END = f"    # From the code: {HOW}\n", "    # Until here.\n"
_MAX_LINE = 80
_PREFIX = "vitald.io"

# --- the variables


def write_variables() -> str:
    status, action = list_label_keys(_PREFIX)
    words = {status: [each.value for each in Status], action: ACTIONS, HEALTH_STATUS: WORDS}
    types = {
        profile: sorted(name.name for name in list_profile_names(profile))
        for profile in CONDITION_PROFILES
    }
    variables = {
        "conditions": _join_sets({OWN: list_own_types(_PREFIX), **types}),
        "labelKeys": _join_sets({"": [status, action], HYPERPOD: LABELS}),
        "annotationKeys": _join_sets({"": [get_annotation_key(_PREFIX)], HYPERPOD: ANNOTATIONS}),
        # A label that is not here may have any word.
        "labelWords": f"{{{', '.join(f'{_quote(key)}: {_list(words[key])}' for key in words)}}}",
        "staleWords": _list(list_stale_words(_PREFIX).values()),
        "staleReason": _quote(HEARTBEAT_STALE),
        "statuses": _list(each.value for each in ConditionStatus),
        "taint": _quote(get_taint_key(_PREFIX)),
        "taintEffects": _list(TAINT_EFFECTS),
        "taintValues": _list(ACTIONS),
        "maxMessage": str(MAX_MESSAGE_BYTES),
        "maxAnnotation": str(MAX_ANNOTATION_BYTES),
    }
    return "".join(_write_variable(name, text) for name, text in variables.items())


def _join_sets(by_set: Mapping[str, Iterable[str]]) -> str:
    """A list of what is allowed with any choice ("") and with each set of conditions."""
    return " + ".join(
        f"('{name}' in variables.sets ? {_list(names)} : [])" if name else _list(names)
        for name, names in by_set.items()
    )


def _list(words: Iterable[str]) -> str:
    return f"[{', '.join(map(_quote, words))}]"


def _quote(word: str) -> str:
    if word.startswith(f"{_PREFIX}/"):
        return f"variables.prefix + '{word.removeprefix(_PREFIX)}'"
    return f"'{word}'"


_BREAK = re.compile(r" (?=\+ [\[(])|(?<=,) ")  # between lists, and between their entries


def _write_variable(name: str, expression: str) -> str:
    """Folded where it is long: YAML reads the lines as one."""
    if len(expression) < _MAX_LINE:
        return f'    - name: {name}\n      expression: "{expression}"\n'
    lines = [""]
    for part in _BREAK.split(expression):
        if lines[-1] and (len(lines[-1]) + len(part) > _MAX_LINE or part.startswith("+")):
            lines.append("")
        lines[-1] += f" {part}" if lines[-1] else part
    folded = "".join(f"        {line}\n" for line in lines)
    return f"    - name: {name}\n      expression: >-\n{folded}"


# --- the files


def write_manifest(text: str) -> str:
    """`text`: the file as it is."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{write_variables()}{_END}{after}"


def write_template(manifest: str) -> str:
    name = '{{ include "vitald.fullname" . }}'
    user = f"system:serviceaccount:{{{{ .Release.Namespace }}}}:{name}"
    text = re.sub(r"^#.*\n", "", manifest, flags=re.MULTILINE)
    for pattern, replacement in (
        (
            r"^  name: vitald-(.*)$",
            rf'  name: {name}-\1\n  labels: {{{{- include "vitald.labels" . | nindent 4 }}}}',
        ),
        (r"^  policyName: vitald-", f"  policyName: {name}-"),
        (r"username\.matches\('.*:vitald\$'\)$", f"username == '{user}'"),
        (r"username\.matches\('.*:vitald-sweep\$'\)$", f"username == '{user}-sweep'"),
        (
            r"username\.matches\('.*:vitald\(-sweep\)\?\$'\)$",
            f"username in ['{user}', '{user}-sweep']",
        ),
        (r'''"'vitald\.io'"''', "\"'{{ .Values.publisher.kubernetes.prefix }}'\""),
        (r'''"\['own'\]"''', "\"['{{ join `', '` .Values.publisher.kubernetes.conditions }}']\""),
    ):
        text, count = re.subn(
            pattern, lambda found: found.expand(replacement), text, flags=re.MULTILINE
        )
        assert count, pattern
    # With impersonation the publishers are their nodes: the policy limits the sweep only.
    condition = 'and .Values.publisher.enabled (has .Values.rbac.mode (list "admissionPolicy" "impersonate"))'
    source = MANIFEST.relative_to(ROOT)
    return f"{{{{- if {condition} -}}}}\n# From {source}: {HOW}\n{text}{{{{- end }}}}\n"


def main() -> None:
    MANIFEST.write_text(write_manifest(MANIFEST.read_text("utf-8")), encoding="utf-8")
    TEMPLATE.write_text(write_template(MANIFEST.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
