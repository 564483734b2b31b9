"""packaging/prometheus: every alert is tested, explained and linked; every expression is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import findings_page
from tests.conftest import require
from tests.pace import patient
from tests.unit.builders import ROOT, catalogue
from tests.unit.test_docs import find_pages, read_anchors
from vitald.metrics import verdict_tier

FOLDER = ROOT / "packaging/prometheus"
RULES, RULES_TEST = FOLDER / "rules.yml", FOLDER / "rules_test.yml"
DOCS = "https://docs.example.com/vitald/"
Rule = Mapping[str, Any]

_FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_NAME_MATCHER = re.compile(r'alertname=~?"([^"]+)"')
_LABEL_OF_LINK = re.compile(r'\{\{ reReplaceAll "[^"]+" "-" \$labels\.(\w+) \}\}')


def read_rules() -> list[Rule]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def read_cases() -> list[Any]:
    cases: list[Any] = yaml.safe_load(RULES_TEST.read_text("utf-8"))["tests"]
    return cases


ALERTS = {rule["alert"]: rule for rule in read_rules() if "alert" in rule}
PAGED = {
    *("VitaldReplacementRequired", "VitaldManyNodesUnfit", "VitaldManyNodesAtOnce"),
    "VitaldManyDaemonsDown",
}


def run(program: str, *arguments: str | Path) -> str:
    """What it prints. Fails unless it ends with 0."""
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=patient(120.0)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def check_expressions(promtool: str, folder: Path, expressions: Mapping[str, str]) -> str:
    """What promtool says of expressions, each under the name of where it stands."""
    rules = [{"alert": name, "expr": text} for name, text in expressions.items()]
    path = folder / "expressions.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "expressions", "rules": rules}]}))
    return run(promtool, "check", "rules", path)


def read_expressions(page: Path) -> Iterator[str]:
    """The blocks labelled promql, one expression a line; what is indented goes on."""
    for _, language, text in _FENCED.findall(page.read_text("utf-8")):
        if language == "promql":
            yield from (part.strip() for part in re.split(r"\n(?![\s)])", text) if part.strip())


@pytest.mark.prometheus
def test_promtool_accepts_the_rules(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "check", "rules", RULES)


@pytest.mark.prometheus
def test_each_alert_does_what_its_cases_say(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", RULES_TEST)


def find_states(case: Mapping[str, Any], alert: str) -> list[bool]:
    """Whether the alert fires, at each time at which the case evaluates it, in their order."""
    checks = [check for check in case.get("alert_rule_test", ()) if check["alertname"] == alert]
    checks.sort(key=lambda check: float(check["eval_time"].removesuffix("m")))
    return [bool(check["exp_alerts"]) for check in checks]


@pytest.mark.parametrize("alert", ALERTS)
def test_cases_show_that_it_fires_and_resolves_and_keeps_quiet(alert: str) -> None:
    states = [found for case in read_cases() if (found := find_states(case, alert))]
    assert any(True in found and found[-1] is False for found in states), "no case resolves"
    assert any(True not in found for found in states), "no case in which it must not fire"


def make_fleet(nodes: int, faulty: int) -> list[dict[str, str]]:
    """Input series of promtool: nodes of which some fail with the same code after 20 minutes."""
    labels = 'kind="xid", code="79", action="reboot_node", when="now", simulated="false"'
    series = {}
    for number in range(nodes):
        status = f'vitald_status{{job="vitald", instance="n{number}", status='
        is_faulty = number < faulty
        series[status + '"healthy"}'] = "1x20 0x20" if is_faulty else "1x40"
        series[status + '"unhealthy"}'] = "0x20 1x20" if is_faulty else "0x40"
        if is_faulty:
            series[f'vitald_findings{{job="vitald", instance="n{number}", {labels}}}'] = "_x21 1x20"
    return [{"series": name, "values": values} for name, values in series.items()]


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("nodes", "faulty", "firing"),
    [
        (60, 3, set()),  # one in twenty is not yet many
        (59, 3, {"VitaldManyNodesUnfit"}),
        (599, 6, {"VitaldSameCode"}),
        (600, 6, set()),  # one in a hundred with the same code
        (600, 10, {"VitaldSameCode", "VitaldManyNodesAtOnce"}),
    ],
)
def test_shares_of_large_fleets(
    promtool: str, tmp_path: Path, nodes: int, faulty: int, firing: set[str]
) -> None:
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)]
    expression = (
        "max by (alertname) (ALERTS{alertstate='firing', alertname=~'VitaldMany.+|VitaldSameCode'})"
    )
    case = {
        "interval": "1m",
        "input_series": make_fleet(nodes, faulty),
        "promql_expr_test": [{"expr": expression, "eval_time": "30m", "exp_samples": samples}],
    }
    (tmp_path / "rules.yml").write_text(RULES.read_text("utf-8"))
    path = tmp_path / "fleet_test.yml"
    path.write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [case]})
    )
    run(promtool, "test", "rules", path)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_it_is_and_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"] == {"severity": "page" if alert in PAGED else "ticket"}
    assert {*rule["annotations"]} >= {"summary", "todo", "runbook_url"}
    assert all(text == text.strip() for text in rule["annotations"].values())


@pytest.mark.parametrize("alert", ALERTS)
def test_the_link_of_an_alert_leads_somewhere(alert: str) -> None:
    """To its section; where the alert is about a code, to that code, for each that there is."""
    url: str = ALERTS[alert]["annotations"]["runbook_url"]
    assert url.startswith(DOCS)
    page, _, anchor = url.removeprefix(DOCS).partition("#")
    anchors = read_anchors(ROOT / "docs" / page)
    assert alert.lower() in read_anchors(ROOT / "docs/alerts.md")
    if _LABEL_OF_LINK.findall(anchor) == ["kind", "code"]:
        codes = [rule.code for rule in catalogue().rules.values() if findings_page.can_open(rule)]
        linked = {
            _LABEL_OF_LINK.sub(lambda label: labels[label[1]], anchor)
            for kind, _, number in (code.partition("/") for code in (*codes, "other/other"))
            for labels in [{"kind": kind, "code": number}]
        }
        assert linked <= anchors
    else:
        assert anchor == alert.lower()


def test_the_table_of_the_page_is_that_of_the_rules() -> None:
    rows = [
        f"| [{name}](#{name.lower()}) | {rule['labels']['severity']} | {rule.get('for', '0s')} |"
        for name, rule in ALERTS.items()
    ]
    page = (ROOT / "docs/alerts.md").read_text("utf-8")
    assert "\n".join(rows) in page
    assert re.findall(r"^### (Vitald\w+)", page, re.MULTILINE) == [*ALERTS]


def read_labels_by_metric() -> dict[str, set[str]]:
    """Of each metric on its reference page: its labels, but deprecated ones."""
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `(vitald_\w+)` \| (?:gauge|counter) \| ([^|]*) \|", page, re.M)
    return {name: set(re.findall(r"`(\w+)`(?!†)", labels)) for name, labels in rows}


def read_recorded_labels() -> dict[str, set[str]]:
    """Of each recorded series: the labels that it is aggregated by."""
    return {
        rule["record"]: set(re.findall(r"\w+", re.findall(r"by \(([^)]*)\)", rule["expr"])[0]))
        for rule in read_rules()
        if "record" in rule
    }


@pytest.mark.parametrize("rule", read_rules(), ids=lambda rule: rule.get("alert", "recorded"))
def test_a_rule_reads_metrics_and_labels_that_there_are(rule: Rule) -> None:
    known = read_labels_by_metric() | read_recorded_labels() | {"up": {"job"}}
    every = set().union(*known.values(), {"cluster", "instance", "job", "hash"})
    expression: str = rule["expr"]
    for name, selector in re.findall(
        r"\b((?:vitald_|cluster:|instance:)[\w:]+)(?:\{(.*?)\})?", expression
    ):
        assert name in known, name
        assert set(re.findall(r"(\w+) *[=!]", selector)) <= known[name], name
    for grouped in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", expression):
        assert set(re.findall(r"\w+", grouped)) <= every
    for text in rule.get("annotations", {}).values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= every


def test_the_rules_need_no_more_than_the_verdict_tier() -> None:
    read = {
        re.sub(r"_(total|info)$", "", name)
        for rule in read_rules()
        for name in re.findall(
            r"\bvitald_\w+", re.sub(r"(cluster|instance):\w+:\w+", "", rule["expr"])
        )
    }
    assert "vitald_findings" in read
    assert read <= {*verdict_tier.FAMILIES}


@pytest.mark.prometheus
def test_the_expressions_of_the_documentation_are_expressions(
    promtool: str, tmp_path: Path
) -> None:
    expressions = {
        f"{page.relative_to(ROOT)} {number}": expression
        for page in find_pages(ROOT)
        for number, expression in enumerate(read_expressions(page))
    }
    assert len(expressions) > 3
    assert "SUCCESS" in check_expressions(promtool, tmp_path, expressions)


@pytest.mark.prometheus
def test_what_is_no_expression_is_found(promtool: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="parse"):
        check_expressions(promtool, tmp_path, {"page": "vitald_status == == 1"})


def test_blocks_with_expressions_say_so() -> None:
    """A query in a block without `promql` would not be checked."""
    for page in find_pages(ROOT):
        for _, language, text in _FENCED.findall(page.read_text("utf-8")):
            if not language:
                assert not re.search(r"vitald_\w+(\{.*?\})? *(==|>|<|unless)", text), page


def list_muted(by: str) -> set[str]:
    """The alerts that are not sent while this one fires, as alertmanager.yml has it."""
    rules = yaml.safe_load((FOLDER / "alertmanager.yml").read_text("utf-8"))["inhibit_rules"]
    muted: set[str] = set()
    for rule in rules:
        (source,), (target,) = (
            [_NAME_MATCHER.fullmatch(each) for each in rule[f"{side}_matchers"]]
            for side in ("source", "target")
        )
        assert source is not None
        assert target is not None
        if re.fullmatch(source[1], by):
            muted |= {alert for alert in ALERTS if re.fullmatch(target[1], alert)}
    return muted


def test_what_one_alert_mutes() -> None:
    """Never what a node needs, and nothing while many nodes are unfit: that may last for weeks."""
    of_many = {"VitaldUnhealthy", "VitaldUnknown", "VitaldDown"}
    assert {alert: muted for alert in ALERTS if (muted := list_muted(alert))} == {
        "VitaldManyNodesAtOnce": of_many,
        "VitaldManyDaemonsDown": of_many,
        "VitaldReplacementRequired": {"VitaldUnhealthy", "VitaldRebootRequired"},
        "VitaldRebootRequired": {"VitaldUnhealthy"},
        "VitaldSourceDown": {"VitaldUnknown"},
    }


def test_amtool_accepts_the_routing() -> None:
    amtool = shutil.which("amtool")
    require(amtool, "amtool (apt-get install prometheus-alertmanager)")
    assert amtool is not None
    path = FOLDER / "alertmanager.yml"
    assert "SUCCESS" in run(amtool, "check-config", path)
    named = set(re.findall(r"Vitald[A-Za-z]+", path.read_text("utf-8")))
    assert named <= {*ALERTS}
