"""packaging/prometheus: what each alert fires on and when it resolves, as promtool evaluates the
rules, and that its texts and links are right.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import findings_page
from tests.unit.alert_cases import CASES, TWIN, Case, Text
from tests.unit.builders import ROOT, catalogue
from tests.unit.test_docs import find_pages, read_anchors
from vitald.metrics import verdict_tier

FOLDER = ROOT / "packaging/prometheus"
RULES = FOLDER / "rules.yml"
DOCS = "https://docs.example.com/vitald/"
MAX_TWINS = 20  # of a case; more take promtool long and show nothing else
Rule = Mapping[str, Any]


def read_groups() -> list[Rule]:
    groups: list[Rule] = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return groups


def read_rules() -> list[Rule]:
    return [rule for group in read_groups() for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in read_rules() if "alert" in rule}


# --- what they fire on


def parse_labels(words: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def format_labels(labels: Mapping[str, str]) -> str:
    written = (f'{name}="{value}"' for name, value in labels.items() if value)
    return "{" + ", ".join(written) + "}"


@dataclass(frozen=True, slots=True)
class PromtoolWriter:
    """Writes cases as `promtool test rules` reads them. `cluster`: of the nodes that name none."""

    cluster: str

    def write_case(self, case: Case) -> dict[str, Any]:
        series = {self._write_series(text): values for text, values in case.series.items()}
        if self.cluster:
            nodes = {text.partition(" ")[0] for text in case.series}
            twins = sorted(node for node in nodes if ":" not in node)[:MAX_TWINS]
            series |= {
                self._write_series(f"other:{node} {text}"): values
                for node in twins
                for text, values in TWIN.items()
            }
        return {
            "name": case.name,
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                self._write_firing(alert, minute, firing)
                for alert, by_minute in case.firing.items()
                for minute, firing in by_minute.items()
            ]
            + [
                self._write_recorded(expression, minute, values)
                for expression, by_minute in case.recorded.items()
                for minute, values in by_minute.items()
            ],
            "alert_rule_test": [
                self._write_text(alert, text) for alert, text in case.texts.items()
            ],
        }

    def _add_cluster(self, labels: dict[str, str]) -> dict[str, str]:
        return {"cluster": self.cluster, **labels} if self.cluster else labels

    def _split_node(self, word: str) -> dict[str, str]:
        cluster, _, node = word.rpartition(":")
        cluster = cluster or self.cluster
        return {"cluster": cluster, "instance": node} if cluster else {"instance": node}

    def _read_fired(self, word: str) -> dict[str, str]:
        if word == "fleet":
            return self._add_cluster({})
        return self._add_cluster(parse_labels([word])) if "=" in word else self._split_node(word)

    def _write_series(self, text: str) -> str:
        node, name, *words = text.split(" ")
        labels = {"job": "vitald", **self._split_node(node), **parse_labels(words)}
        return name + format_labels(labels)

    def _write_firing(self, alert: str, minute: int, firing: str) -> dict[str, Any]:
        """That these fire, and no others."""
        assert alert in ALERTS
        fired = [self._read_fired(word) for word in firing.split()]
        names = {"cluster", "instance"}.union(*fired)
        return {
            "expr": (
                f"group by ({', '.join(sorted(names))})"
                f' (ALERTS{{alertname="{alert}", alertstate="firing"}})'
            ),
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": format_labels(labels), "value": 1} for labels in fired],
        }

    def _write_recorded(
        self, expression: str, minute: int, values: Mapping[str, float]
    ) -> dict[str, Any]:
        name = expression if expression.startswith("cluster:") else ""
        return {
            "expr": expression,
            "eval_time": f"{minute}m",
            "exp_samples": [
                {
                    "labels": name + format_labels(self._add_cluster(parse_labels(words.split()))),
                    "value": value,
                }
                for words, value in values.items()
            ],
        }

    def _write_text(self, alert: str, text: Text) -> dict[str, Any]:
        rule = ALERTS[alert]
        fired = []
        for words, summary in zip(text.labels.split(";"), text.summary.split(";")):
            labels = self._add_cluster(
                {"job": "vitald", **parse_labels(words.split()), **rule["labels"]}
            )
            url = rule["annotations"]["runbook_url"]
            for name in ("kind", "code"):
                url = url.replace(f"{{{{ $labels.{name} }}}}", labels.get(name, ""))
            fired.append(
                {
                    "exp_labels": {name: value for name, value in labels.items() if value},
                    "exp_annotations": {
                        "summary": summary.format(of=f" of {self.cluster}" if self.cluster else ""),
                        "description": rule["annotations"]["description"],
                        "runbook_url": url,
                    },
                }
            )
        return {"eval_time": f"{text.minute}m", "alertname": alert, "exp_alerts": fired}


def run(program: str, *arguments: str | Path) -> str:
    """What it prints. Fails unless it ends with 0."""
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("cluster", ["", "one"], ids=["one cluster", "two clusters"])
def test_what_fires_and_what_does_not(cluster: str, promtool: str, tmp_path: Path) -> None:
    writer = PromtoolWriter(cluster)
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [writer.write_case(case) for case in CASES],
    }
    path = tmp_path / "cases.yml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    run(promtool, "test", "rules", path)


def test_promtool_accepts_the_rules(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "check", "rules", RULES)


def test_managed_services_accept_the_size_of_each_group() -> None:
    """Amazon's quota `Rules per rule group`, Mimir's `-ruler.max-rules-per-rule-group`."""
    assert {group["name"]: n for group in read_groups() if (n := len(group["rules"])) > 20} == {}


@pytest.mark.parametrize("alert", ALERTS)
def test_cases_show_that_an_alert_fires_and_resolves(alert: str) -> None:
    shown = [
        [firing for _, firing in sorted(case.firing[alert].items())]
        for case in CASES
        if alert in case.firing
    ]
    assert any(any(before) and not last for *before, last in shown)
    assert any(alert in case.texts for case in CASES)


# --- texts and links


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_it_is_and_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    paged = {
        *("VitaldReplacementRequired", "VitaldManyNodesAtOnce", "VitaldManyDaemonsDown"),
        "VitaldAbsent",
    }
    assert rule["labels"] == {"severity": "page" if alert in paged else "ticket"}
    assert {*rule["annotations"]} == {"summary", "description", "runbook_url"}


@pytest.mark.parametrize("alert", ALERTS)
def test_the_link_of_an_alert_leads_somewhere(alert: str) -> None:
    """To its section; where the alert is about a code, to that code, for each that there is."""
    url: str = ALERTS[alert]["annotations"]["runbook_url"]
    page, _, anchor = url.removeprefix(DOCS).partition("#")
    anchors = read_anchors(ROOT / "docs" / page)
    assert alert.lower() in read_anchors(ROOT / "docs/alerts.md")
    if page == "alerts.md":
        assert anchor == alert.lower()
        return
    assert anchor == "{{ $labels.kind }}-{{ $labels.code }}"
    codes = [rule.code for rule in catalogue().rules.values() if findings_page.can_open(rule)]
    assert {findings_page.make_anchor(code) for code in codes} <= anchors


def test_the_table_of_the_page_is_that_of_the_rules() -> None:
    rows = [
        f"| [{name}](#{name.lower()}) | {rule['labels']['severity']} | {rule.get('for', '0m')} |"
        for name, rule in ALERTS.items()
    ]
    page = (ROOT / "docs/alerts.md").read_text("utf-8")
    assert "\n".join(rows) in page
    assert re.findall(r"^### (Vitald\w+)", page, re.MULTILINE) == [*ALERTS]


# --- what they read


def read_labels_by_metric() -> dict[str, set[str]]:
    """Of each metric on its reference page: its labels."""
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `(vitald_\w+)` \| (?:gauge|counter) \| ([^|]*) \|", page, re.M)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


@pytest.mark.parametrize("rule", read_rules(), ids=lambda rule: rule.get("alert", "recorded"))
def test_a_rule_reads_metrics_and_labels_that_there_are(rule: Rule) -> None:
    """A misspelt label matches nothing, and an alert on it is silent for ever."""
    known = read_labels_by_metric()
    every = set().union(*known.values(), {"cluster", "instance", "job", "limit"})
    recorded = {other["record"] for other in read_rules() if "record" in other}
    expression: str = rule["expr"]
    for name, selector in re.findall(
        r"\b(vitald_\w+|cluster:[\w:]+)(?:\{(.*?)\})?", expression, re.S
    ):
        assert name in known or name in recorded, name
        assert set(re.findall(r"(\w+) *(?:=|!)", selector)) <= known.get(name, set()), name
    for grouped in re.findall(r"\b(?:by|on|without|group_left) \(([^)]*)\)", expression):
        assert set(re.findall(r"\w+", grouped)) <= every
    for text in rule.get("annotations", {}).values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= every


def test_the_rules_need_no_more_than_the_verdict_tier() -> None:
    read = {
        re.sub(r"_(total|info)$", "", name)
        for rule in read_rules()
        for name in re.findall(r"(?<!:)\bvitald_\w+", rule["expr"])
    }
    assert "vitald_findings" in read
    assert read <= {*verdict_tier.FAMILIES}


def test_missing_devices_are_these_codes() -> None:
    """Those that require a reboot have an alert of their own."""
    selector = ALERTS["VitaldDevicesMissing"]["expr"]
    kinds, codes = (
        re.compile(re.findall(rf'\b{label}=~"([^"]+)"', selector)[0]) for label in ("kind", "code")
    )
    matched = {
        rule.code
        for rule in catalogue().rules.values()
        for kind, _, code in [rule.code.partition("/")]
        if kinds.fullmatch(kind) and codes.fullmatch(code)
    }
    assert matched == {
        *("expect/gpus", "expect/neuron", "expect/efa", "expect/nics", "expect/nvme"),
        *("nvml/gpu_count", "nvml/board_incomplete", "pci/board_incomplete"),
        *("pci/missing", "nvme/missing"),
    }


def test_a_suspect_device_is_what_the_catalogue_calls_one() -> None:
    expression = ALERTS["VitaldSuspectDevice"]["expr"]
    (threshold,) = re.findall(r"vitald_device_lemon_score >= (\S+)", expression)
    assert float(threshold) == catalogue().lemon.suspect


# --- expressions in the documentation


def read_expressions(page: Path) -> Iterator[str]:
    """The blocks labelled promql, one expression a line; what is indented goes on."""
    for text in re.findall(r"^ *```promql\n(.*?)^ *```", page.read_text("utf-8"), re.M | re.S):
        yield from (part.strip() for part in re.split(r"\n(?![\s)])", text) if part.strip())


def check_expressions(promtool: str, folder: Path, expressions: Mapping[str, str]) -> None:
    """Each under the name of where it stands."""
    rules = [{"alert": name, "expr": text} for name, text in expressions.items()]
    path = folder / "expressions.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "expressions", "rules": rules}]}))
    run(promtool, "check", "rules", path)


def test_the_expressions_of_the_documentation_are_expressions(
    promtool: str, tmp_path: Path
) -> None:
    expressions = {
        f"{page.relative_to(ROOT)} {number}": expression
        for page in find_pages(ROOT)
        for number, expression in enumerate(read_expressions(page))
    }
    assert len(expressions) > 3
    check_expressions(promtool, tmp_path, expressions)
    with pytest.raises(AssertionError, match="parse"):
        check_expressions(promtool, tmp_path, {"page": "vitald_status == == 1"})


def test_blocks_with_expressions_say_so() -> None:
    """A query in another block would not be checked."""
    query = re.compile(r"^[^$#\n]*\bvitald_\w+(\{.*?\})? *(==|>|<|\*|unless|and on) ", re.M)
    for page in find_pages(ROOT):
        text = re.sub(r"^ *```promql\n.*?^ *```", "", page.read_text("utf-8"), flags=re.M | re.S)
        assert not query.search(text), page


# --- routing


def test_what_one_alert_mutes() -> None:
    """Never what a node requires. Many nodes at once mute the tickets of each."""
    rules = yaml.safe_load((FOLDER / "alertmanager.yml").read_text("utf-8"))["inhibit_rules"]

    def match(matcher: str) -> set[str]:
        found = re.fullmatch(r'alertname=~?"([^"]+)"', matcher)
        assert found is not None
        assert set(found[1].split("|")) <= {*ALERTS}
        return set(found[1].split("|"))

    muted: dict[str, set[str]] = {}
    for rule in rules:
        for source in match(*rule["source_matchers"]):
            muted.setdefault(source, set()).update(match(*rule["target_matchers"]))
    of_many = {"VitaldUnhealthy", "VitaldUnknown", "VitaldDown"}
    assert muted == {
        "VitaldManyNodesAtOnce": of_many,
        "VitaldManyDaemonsDown": of_many,
        "VitaldReplacementRequired": {"VitaldUnhealthy", "VitaldRebootRequired"},
        "VitaldRebootRequired": {"VitaldUnhealthy"},
        "VitaldDevicesMissing": {"VitaldUnhealthy"},
        "VitaldSourceDown": {"VitaldUnknown"},
    }
