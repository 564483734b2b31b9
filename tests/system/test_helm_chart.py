"""
The Helm chart: it renders what the manifests say, a real API server takes it, and what it installs
leaves nothing on the nodes once it is removed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import monitoring_files
from tests.control_plane.cluster_node import ClusterNode
from tests.control_plane.helm import (
    CHART,
    WITH_IMAGE,
    Json,
    demand_helm,
    render_chart,
    run_helm,
    start_helm,
)
from tests.control_plane.manifests import (
    IMAGE,
    KUBERNETES,
    NAMESPACE,
    choose,
    choose_component,
    copy_manifests,
    drop,
)
from tests.control_plane.plane import ControlPlane
from tests.control_plane.publisher import Publisher
from tests.harness import PYTHON, ROOT, Node
from tests.system.lines import xid
from tests.system.test_publish_rights import without_managers
from tests.waiting import WAIT_S, until
from vitald import __version__, tomlfile
from vitald.config.sections import parse_config
from vitald.publish.kubernetes.cluster_client import PUBLISHER as PUBLISHER_CONTAINER
from vitald.publish.kubernetes.settings import CONDITION_SETS, RESERVED_DOMAINS
from vitald.publish.notify.settings import NotifySettings

IN_CLUSTER = [pytest.mark.control_plane, pytest.mark.xdist_group("control_plane")]
PUBLISHER = {"enabled": True}
DOCS = "https://docs.example.com/vitald"
NODES = tuple(f"helm-{number}" for number in range(30))  # more than fit in one page


def in_cluster(test: Any) -> Any:
    for mark in IN_CLUSTER:
        test = mark(test)
    return test


# --- the files


def load_values() -> Json:
    values: Json = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    return values


def test_the_chart_has_the_version_of_vitald() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_default_configuration_is_that_of_the_manifests() -> None:
    _, tables = tomlfile.read_toml(KUBERNETES / "config.toml")
    assert load_values()["config"] == tables


def test_the_schema_allows_what_the_configuration_allows() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    assert set(load_values()) == set(schema["properties"]) - {"global"}
    publisher = schema["properties"]["publisher"]["properties"]["kubernetes"]["properties"]
    assert tuple(publisher["conditions"]["items"]["enum"]) == CONDITION_SETS
    reserved = "|".join(domain.replace(".", "[.]") for domain in RESERVED_DOMAINS)
    assert publisher["prefix"]["not"]["pattern"] == f"(^|[.])({reserved})$"


# --- equal to the manifests


def render_manifests(plane: ControlPlane, folder: Path) -> list[Json]:
    text = plane.kubectl("kustomize", str(folder))
    return [document for document in yaml.safe_load_all(text) if document]


def nothing(folder: Path) -> None:
    """The manifests as they are."""


def with_component(folder: Path) -> None:
    choose_component(folder)


def with_taint(folder: Path) -> None:
    choose_component(folder)
    choose(folder / "publish/kustomization.yaml", "taint.yaml")
    config = folder / "publish/publish.toml"
    config.write_text(config.read_text("utf-8") + 'taint = "NoSchedule"\n')


def with_impersonation(folder: Path) -> None:
    choose_component(folder)
    rights = folder / "publish/kustomization.yaml"
    drop(rights, "rbac.yaml")
    choose(rights, "impersonate.yaml")
    config = folder / "publish/publish.toml"
    config.write_text(config.read_text("utf-8") + "impersonate = true\n")


def with_rule(folder: Path) -> None:
    choose_component(folder)
    choose(folder / "publish/kustomization.yaml", "node-readiness-rule.yaml")


def on_openshift(folder: Path) -> None:
    choose_component(folder)
    choose(folder / "kustomization.yaml", "openshift.yaml")


def with_device_plugin(folder: Path) -> None:
    drop(folder / "kustomization.yaml", "path: privileged.yaml")
    choose(folder / "kustomization.yaml", "path: device-plugin.yaml")


def with_other_choices(folder: Path) -> None:
    choose(
        folder / "kustomization.yaml",
        *("path: nvidia.yaml", "path: gpu-operator.yaml", "pod-monitor.yaml"),
        *("prometheus-rule.yaml", "../grafana"),
        *("network-policy.yaml", "path: host-network.yaml", "path: selinux.yaml"),
    )


def with_many_nodes(folder: Path) -> None:
    choose(folder / "kustomization.yaml", "pod-monitor-large-fleet.yaml")


SAME: dict[str, tuple[Callable[[Path], None], Json]] = {
    "default": (nothing, {}),
    "publisher": (with_component, {"publisher": PUBLISHER}),
    "taint": (
        with_taint,
        {"publisher": {**PUBLISHER, "kubernetes": {"taint": "NoSchedule"}}},
    ),
    "impersonation": (
        with_impersonation,
        {"publisher": PUBLISHER, "rbac": {"mode": "impersonate"}},
    ),
    "rule": (with_rule, {"publisher": PUBLISHER, "nodeReadinessRule": {"enabled": True}}),
    "openshift": (on_openshift, {"publisher": PUBLISHER, "retire": {"enabled": False}}),
    "device plugin": (with_device_plugin, {"kmsg": "devicePlugin"}),
    "other choices": (
        with_other_choices,
        {
            "runtimeClassName": "nvidia",
            "gpuOperatorDriver": True,
            "podMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboards": {"enabled": True},
            "networkPolicy": {"enabled": True},
            "hostNetwork": True,
            "seLinuxOptions": {"type": "spc_t"},
        },
    ),
    "many nodes": (
        with_many_nodes,
        {"podMonitor": {"enabled": True, "restInterval": "1m"}},
    ),
}


@in_cluster
@pytest.mark.parametrize("name", SAME)
def test_the_chart_says_what_the_manifests_say(
    control_plane: ControlPlane, tmp_path: Path, name: str
) -> None:
    change, values = SAME[name]
    apis = ["security.openshift.io/v1"] if name == "openshift" else []
    manifests = copy_manifests(tmp_path)
    change(manifests)
    expected = summarize(render_manifests(control_plane, manifests))
    del expected["Namespace vitald"]  # it is there before the chart
    assert summarize(render_chart(control_plane, NAMESPACE, values, apis=apis)) == expected


@in_cluster
def test_receivers_of_notifications_with_their_secrets(control_plane: ControlPlane) -> None:
    """The configuration is one that vitald reads; its files are no other user's."""
    receiver = {"url_file": "/etc/vitald-notify/slack.url", "format": "slack"}
    publisher = {
        **PUBLISHER,
        "notifySecret": "receivers",
        "config": {"notify": {"chat": receiver, "pager": {**receiver, "settle": "1m"}}},
    }
    documents = render_chart(control_plane, NAMESPACE, {"publisher": publisher})
    (text,) = [
        each["data"]["publish.toml"] for each in documents if "publish" in str(each.get("data"))
    ]
    notify = parse_config(text, tomlfile.parse_toml(text, "c"), "c").get_group(NotifySettings)
    assert (notify["chat"].format, notify["pager"].settle_s) == ("slack", 60.0)
    (pod,) = [
        document["spec"]["template"]["spec"]
        for document in documents
        if document["kind"] == "DaemonSet"
    ]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "notify"]
    assert volume["secret"] == {"secretName": "receivers", "defaultMode": 0o440}
    assert pod["securityContext"]["fsGroup"] == 10001
    mounted = {
        container["name"]: "/etc/vitald-notify" in str(container["volumeMounts"])
        for container in pod["containers"]
    }
    assert mounted == {"vitald": False, PUBLISHER_CONTAINER: True}


@in_cluster
@pytest.mark.parametrize("by", ["chart", "manifests"])
def test_the_sweep_asks_for_the_pods_of_publishers(
    control_plane: ControlPlane, tmp_path: Path, by: str
) -> None:
    if by == "chart":
        documents = render_chart(control_plane, NAMESPACE, {"publisher": PUBLISHER})
    else:
        manifests = copy_manifests(tmp_path)
        choose_component(manifests)
        documents = render_manifests(control_plane, manifests)
    pods = {
        document["kind"]: document["spec"]["template"]
        for document in documents
        if document["kind"] in ("DaemonSet", "Deployment")
    }
    (container,) = pods["Deployment"]["spec"]["containers"]
    (selector,) = [
        word.removeprefix("--pods=") for word in container["command"] if word.startswith("--pods=")
    ]
    selected = dict(label.split("=") for label in selector.split(",")).items()
    assert selected <= pods["DaemonSet"]["metadata"]["labels"].items()
    assert not selected <= pods["Deployment"]["metadata"]["labels"].items()
    assert PUBLISHER_CONTAINER in [each["name"] for each in pods["DaemonSet"]["spec"]["containers"]]


def summarize(documents: list[Json]) -> Json:
    """What the objects do, by kind and name: without labels and the order of lists. Rights by who
    has them.
    """
    summary: Json = {}
    rules = {
        (document["kind"], document["metadata"]["name"]): document["rules"]
        for document in documents
        if document["kind"] in ("ClusterRole", "Role")
    }
    for document in documents:
        kind, name = document["kind"], document["metadata"]["name"]
        if kind == "ConfigMap":
            summary[f"{kind} {re.sub(*CHOSEN_BY_HELM[0], name)}"] = {
                "dashboard": document["metadata"].get("labels", {}).get("grafana_dashboard"),
                **{
                    file: json.loads(text) if file.endswith(".json") else read_config(text)
                    for file, text in document["data"].items()
                },
            }
        elif kind in ("ClusterRoleBinding", "RoleBinding"):
            role = document["roleRef"]
            for subject in document["subjects"]:
                whose = f"{role['kind']} of {subject['namespace']}/{subject['name']}"
                granted = rules.get((role["kind"], role["name"]), [{"role": role["name"]}])
                summary.setdefault(whose, []).extend(granted)
        elif kind not in ("ClusterRole", "Role"):
            rest = {key: document[key] for key in document if key != "metadata"}
            summary[f"{kind} {name}"] = normalize(rest)
    return {
        name: sorted(each, key=json.dumps) if isinstance(each, list) else each
        for name, each in summary.items()
    }


def read_config(text: str) -> Json:
    return {
        section: {key: value for key, value in table.items() if value not in (False, "off")}
        | ({"conditions": ["own"], "prefix": "vitald.io"} if section == "kubernetes" else {})
        for section, table in tomlfile.parse_toml(text, "config").items()
    }


def normalize(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: normalize(each)
            for key, each in value.items()
            if key not in ("matchConditions", "matchLabels")
            and not (key == "metadata" and set(each) <= {"labels", "annotations"})
        }
    if isinstance(value, list):
        values = [normalize(each) for each in value]
        return sorted(values, key=lambda each: str(each["name"])) if is_named(values) else values
    if isinstance(value, str):
        text = " ".join(value.split())
        for pattern, replacement in CHOSEN_BY_HELM:
            text = re.sub(pattern, replacement, text)
        return text
    return value


# The hash in a ConfigMap's name, the users of this release only, the pods of this release only.
CHOSEN_BY_HELM = (
    (r"^(vitald(?:-publish)?)-[a-z0-9]{10}$", r"\1"),
    (r"^request[.]userInfo[.]username(?: ==|[.]matches).*?(-sweep)?[$]?'[)]?$", r"user \1"),
    (r"^(--pods=.*),app[.]kubernetes[.]io/instance=vitald$", r"\1"),
)


def is_named(values: list[Any]) -> bool:
    return all(isinstance(each, dict) and "name" in each for each in values)


# --- a real API server


STRINGS: Json = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Json = {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"}
CUSTOM = {
    # As far as they are used: prometheus-operator, api/monitoring/v1.
    "podmonitors": (
        "monitoring.coreos.com",
        "v1",
        "PodMonitor",
        "Namespaced",
        {
            "type": "object",
            "required": ["selector", "podMetricsEndpoints"],
            "properties": {
                "jobLabel": {"type": "string"},
                "selector": {
                    "type": "object",
                    "properties": {"matchLabels": STRINGS},
                },
                "podMetricsEndpoints": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "port": {"type": "string"},
                            "interval": DURATION,
                            "params": {
                                "type": "object",
                                "additionalProperties": {
                                    "type": "array",
                                    "items": {"type": "string"},
                                },
                            },
                            "relabelings": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "properties": {
                                        "sourceLabels": {
                                            "type": "array",
                                            "items": {"type": "string"},
                                        },
                                        "targetLabel": {"type": "string"},
                                        "replacement": {"type": "string"},
                                        "regex": {"type": "string"},
                                        "action": {"enum": ["labeldrop"]},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    ),
    "prometheusrules": (
        "monitoring.coreos.com",
        "v1",
        "PrometheusRule",
        "Namespaced",
        {
            "type": "object",
            "properties": {
                "groups": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string", "minLength": 1},
                            "interval": DURATION,
                            "rules": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "required": ["expr"],
                                    "properties": {
                                        "alert": {"type": "string"},
                                        "record": {"type": "string"},
                                        "expr": {"type": "string"},
                                        "for": DURATION,
                                        "keep_firing_for": {**DURATION, "minLength": 1},
                                        "labels": STRINGS,
                                        "annotations": STRINGS,
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    ),
    # As far as the rule uses it: node-readiness-controller, api/v1alpha1.
    "nodereadinessrules": (
        "readiness.node.x-k8s.io",
        "v1alpha1",
        "NodeReadinessRule",
        "Cluster",
        {
            "type": "object",
            "required": ["conditions", "enforcementMode", "nodeSelector", "taint"],
            "properties": {
                "conditions": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "requiredStatus"],
                        "properties": {
                            "type": {"type": "string"},
                            "requiredStatus": {"enum": ["True", "False", "Unknown"]},
                        },
                    },
                },
                "enforcementMode": {"enum": ["bootstrap-only", "continuous"]},
                "nodeSelector": {
                    "type": "object",
                    "minProperties": 1,
                    "properties": {"matchLabels": STRINGS},
                },
                "taint": {
                    "type": "object",
                    "required": ["key", "effect"],
                    "properties": {
                        "key": {"type": "string", "pattern": "^readiness[.]k8s[.]io/"},
                        "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
                    },
                },
            },
        },
    ),
}


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """With the kinds that other projects define."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for plural, (group, version, kind, scope, spec) in CUSTOM.items():
        schema = {"type": "object", "properties": {"spec": complete(spec)}}
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        served = {
            "name": version,
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
        }
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {"group": group, "scope": scope, "names": names, "versions": [served]},
        }
        control_plane.demand("POST", path, definition)
        name = f"{plural}.{group}"
        control_plane.kubectl("wait", "--for=condition=Established", f"crd/{name}")
    yield control_plane
    for plural, (group, *_) in CUSTOM.items():
        control_plane.demand("DELETE", f"{path}/{plural}.{group}")


def complete(schema: Json) -> Json:
    """A schema needs the type of every field."""
    if not schema:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if "enum" in schema:
        return {"type": "string", **schema}
    kept = dict(schema)
    if "properties" in schema:
        kept["properties"] = {key: complete(each) for key, each in schema["properties"].items()}
    if "items" in schema:
        kept["items"] = complete(schema["items"])
    return kept


@in_cluster
def test_rules_and_dashboards_have_the_links_and_labels_of_the_site(
    control_plane: ControlPlane,
) -> None:
    """What is for Prometheus and Grafana to fill in stays as it is."""
    rendered = render_chart(control_plane, NAMESPACE, EVERYTHING)
    (rule,) = (each for each in rendered if each["kind"] == "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["spec"] == yaml.safe_load(read_with_links(monitoring_files.RULES))
    assert "{{ $labels.instance }}" in json.dumps(rule["spec"])
    maps = [each for each in rendered if "grafana_dashboard" in each["metadata"].get("labels", {})]
    assert [each["metadata"]["annotations"] for each in maps] == [{"grafana_folder": "vitald"}] * 2
    assert {file: json.loads(text) for each in maps for file, text in each["data"].items()} == {
        f"vitald-{path.name}": json.loads(read_with_links(path))
        for path in monitoring_files.DASHBOARDS
    }


def read_with_links(path: Path) -> str:
    """With links into the documentation of a site."""
    text = path.read_text("utf-8")
    assert DOCS in text
    return text.replace(DOCS, "https://wiki.example.com/vitald")


EVERYTHING: Json = {
    "publisher": {
        **PUBLISHER,
        "kubernetes": {
            "prefix": "health.example.com",
            "conditions": ["own", "eks", "npd", "hyperpod"],
            "taint": "NoSchedule",
        },
        "config": {"recovery": {"mode": "automatic"}},
    },
    "nodeReadinessRule": {"enabled": True},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "restInterval": "never"},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboards": {"enabled": True, "annotations": {"grafana_folder": "vitald"}},
    "docsUrl": "https://wiki.example.com/vitald/",
    "runtimeClassName": "nvidia",
    "gpuOperatorDriver": True,
    "imagePullSecrets": [{"name": "registry"}],
    "affinity": {"podAffinity": {}},
    "podLabels": {"team": "a"},
    "podAnnotations": {"note": "b"},
    "configText": '[log]\nlevel = "debug"\n',
}


def choose_profile(name: str) -> Json:
    """`hyperpod` needs the mode too."""
    chosen = {"kubernetes": {"conditions": [name]}, "config": {"recovery": {"mode": "automatic"}}}
    return {"publisher": {**PUBLISHER, **chosen}}


@in_cluster
@pytest.mark.parametrize(
    "values",
    [*(each for _, each in SAME.values()), *map(choose_profile, CONDITION_SETS), EVERYTHING],
)
def test_the_api_server_takes_what_the_chart_renders(cluster: ControlPlane, values: Json) -> None:
    with namespace(cluster, "helm-dry-run") as name:
        rendered = yaml.safe_dump_all(render_chart(cluster, name, values))
        cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=rendered)


@in_cluster
def test_another_namespace_prefix_or_image_is_forgotten_nowhere(
    control_plane: ControlPlane,
) -> None:
    values = {**EVERYTHING, "image": {"tag": "7"}, "networkPolicy": {"enabled": True}}
    documents = render_chart(control_plane, "gpu-health", values)
    named = list(find_values(documents, "namespace"))
    assert {"gpu-health"} == set(named), named
    assert set(find_values(documents, "image")) == {f"{IMAGE}:7"}
    text = yaml.safe_dump_all(documents)
    assert "serviceaccount:gpu-health:" in text and "serviceaccount:vitald:" not in text
    assert "health.example.com" in text and "vitald.io" not in text


def find_values(value: Any, key: str) -> Iterator[Any]:
    """Of this key, at whatever depth."""
    if isinstance(value, dict):
        yield from (value[key],) if key in value else ()
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, (dict, list)):
            yield from find_values(each, key)


@contextmanager
def namespace(plane: ControlPlane, name: str) -> Iterator[str]:
    """It stays behind, empty: no controller completes its deletion."""
    metadata = {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}
    plane.call("POST", "/api/v1/namespaces", {"metadata": metadata})
    yield name


@in_cluster
@pytest.mark.parametrize("values", [{}, EVERYTHING])
def test_helm_finds_nothing_wrong_with_the_chart(control_plane: ControlPlane, values: Json) -> None:
    version = control_plane.demand("GET", "/version")["gitVersion"]
    arguments = ("lint", "--strict", str(CHART), "--kube-version", version, *WITH_IMAGE)
    demand_helm(control_plane, *arguments, "--values", "-", stdin=yaml.safe_dump(values))


WRONG: dict[str, tuple[Json, str]] = {
    "an unknown value": ({"publishr": {}}, "publishr"),
    "a wrong word": ({"rbac": {"mode": "wide"}}, "/rbac/mode"),
    "two writers of a ledger": (
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}},
        "/updateStrategy/rollingUpdate/maxSurge",
    ),
    "a taint that no node may set": (
        {
            "publisher": {**PUBLISHER, "kubernetes": {"taint": "NoSchedule"}},
            "rbac": {"mode": "impersonate"},
        },
        "publisher.kubernetes.taint",
    ),
    "orders to SageMaker that nobody may give": (
        {"publisher": {**PUBLISHER, "kubernetes": {"conditions": ["hyperpod"]}}},
        "publisher.config.recovery.mode",
    ),
    "a rule on a condition that nobody writes": (
        {"nodeReadinessRule": {"enabled": True}},
        "nodeReadinessRule.enabled",
    ),
    "the prefix of another project": (
        {"publisher": {**PUBLISHER, "kubernetes": {"prefix": "gpu.nvidia.com"}}},
        "/publisher/kubernetes/prefix",
    ),
    "links that are none": ({"docsUrl": "docs/"}, "/docsUrl"),
    "no image": ({"image": {}}, "image.repository: is required"),
    "a number that Helm garbles": ({"config": {"ledger": {"x": 1234567}}}, "configText"),
}


@in_cluster
@pytest.mark.parametrize("what", WRONG)
def test_wrong_values_are_refused_by_name(control_plane: ControlPlane, what: str) -> None:
    values, named = WRONG[what]
    version = control_plane.demand("GET", "/version")["gitVersion"]
    arguments = ("template", str(CHART), "--kube-version", version, "--values", "-")
    given = yaml.safe_dump({"image": {"repository": IMAGE}, **values})
    done = run_helm(control_plane, *arguments, stdin=given)
    assert (done.returncode, named in done.stderr) == (1, True), done.stderr


@in_cluster
def test_an_older_cluster_and_a_closed_namespace_are_refused(control_plane: ControlPlane) -> None:
    on = ("--set", "publisher.enabled=true", *WITH_IMAGE)
    old = ("template", str(CHART), "--kube-version", "1.29.5", *on)
    done = run_helm(control_plane, *old)
    assert (done.returncode, "needs Kubernetes 1.30.0 or later" in done.stderr) == (1, True)
    metadata = {"name": "helm-closed", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}
    control_plane.demand("POST", "/api/v1/namespaces", {"metadata": metadata})
    closed = ("install", "vitald", str(CHART), "-n", "helm-closed", *WITH_IMAGE)
    done = run_helm(control_plane, *closed)
    assert (done.returncode, "namespace helm-closed" in done.stderr) == (1, True)


# --- the admission policy


@in_cluster
def test_the_policy_lets_the_publisher_write_all_sets_with_another_prefix(
    control_plane: ControlPlane, tmp_path: Path, cluster_node: ClusterNode
) -> None:
    """And clean up what it wrote, after the policy has changed with its configuration."""
    plane, release = control_plane, ("vitald", "--namespace", "helm-sets")
    values = yaml.safe_dump({"publisher": EVERYTHING["publisher"]})
    install = (*release, str(CHART), "--create-namespace", *WITH_IMAGE, "--values", "-")
    demand_helm(plane, "install", *install, stdin=values)
    token = plane.create_pod_token(cluster_node.name, "helm-sets", "vitald")
    chosen = EVERYTHING["publisher"]["kubernetes"]
    lines = (
        f'prefix = "{chosen["prefix"]}"\nconditions = {json.dumps(chosen["conditions"])}\n'
        f'taint = "{chosen["taint"]}"\n[recovery]\nmode = "automatic"\n'
    )
    types = {f"health.example.com/{name}" for name in ("Healthy", "RebootRequired")}
    types |= {"KernelReady", "NetworkingReady", "KernelDeadlock", "ReadonlyFilesystem"}
    with Node(tmp_path / "daemon") as daemon:
        daemon.write(xid(79))
        made = tmp_path / "publisher"
        with Publisher(made, daemon, cluster_node, token=token, kubernetes=lines):
            until(lambda: types <= cluster_node.conditions.keys(), "the conditions of all sets")
            until(lambda: "health.example.com/unhealthy" in str(cluster_node.read()["spec"]))
        labels = cluster_node.read()["metadata"]["labels"]
        assert labels["health.example.com/status"] == "unhealthy"
        assert labels["sagemaker.amazonaws.com/node-health-status"] == "Unschedulable"
        demand_helm(plane, "upgrade", *install, stdin=yaml.safe_dump({"publisher": PUBLISHER}))
        with Publisher(made, daemon, cluster_node, token=token):
            # Until the API server has the new policy, parts are written one by one, and those that
            # it refuses are tried again after a minute.
            until(lambda: cluster_node.read_status() == "False", "the condition", seconds=150)
            until(
                lambda: {one.partition("/")[0] for one in cluster_node.conditions} == {"vitald.io"},
                "the former conditions to go",
                seconds=150,
            )
        assert cluster_node.labels.keys() == {"status", "action"}
        assert "sagemaker" not in str(cluster_node.read()["metadata"]["labels"])
    demand_helm(plane, "uninstall", "--no-hooks", *release)


# --- a life: installed, upgraded, removed


@pytest.fixture
def nodes(control_plane: ControlPlane) -> Iterator[dict[str, Json]]:
    """The nodes as they were before vitald came. Others have written to them too."""
    for name in NODES:
        control_plane.create_node(name)
    metadata = {
        "labels": {"example.com/zone": "a", "vitald.io/monitor": "off"},
        "annotations": {"example.com/note": "b", "vitald.io/owner": "c"},
    }
    taints = [{"key": "example.com/maintenance", "effect": "NoSchedule"}]
    body = {"metadata": metadata, "spec": {"taints": taints}}
    control_plane.demand("PATCH", f"/api/v1/nodes/{NODES[0]}", body)
    write_status(control_plane, NODES[2], "agent", FOREIGN)
    yield {name: describe_node(control_plane, name) for name in NODES}
    for name in NODES:
        control_plane.demand("DELETE", f"/api/v1/nodes/{name}")


FOREIGN: Json = {
    "metadata": {"labels": {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}},
    "status": {"conditions": [{"type": "KernelReady", "status": "True"}]},
}


def write_status(plane: ControlPlane, node: str, manager: str, body: Json) -> None:
    plane.demand("PATCH", f"/api/v1/nodes/{node}/status?fieldManager={manager}", body)


def describe_node(plane: ControlPlane, name: str) -> Json:
    node = without_managers(plane.read_node(name))
    del node["metadata"]["resourceVersion"]
    node["status"].setdefault("conditions", [])
    return {**node, "metadata": {"annotations": {}, **node["metadata"]}}


@in_cluster
def test_installed_upgraded_and_removed_it_leaves_nothing(
    control_plane: ControlPlane, nodes: dict[str, Json], tmp_path: Path
) -> None:
    """No kubelet and no controller of Jobs run here: the test runs the commands of the pods with
    the tokens that they would have.
    """
    plane, release = control_plane, ("vitald", "--namespace", "helm-life")
    install = ("install", *release, str(CHART), "--create-namespace", *WITH_IMAGE)
    demand_helm(plane, *install, "--set", "publisher.enabled=true")
    token = plane.create_pod_token(NODES[0], "helm-life", "vitald")
    with Node(tmp_path / "daemon") as daemon:
        daemon.write(xid(79))
        with publisher(plane, token, daemon, tmp_path):
            await_condition(plane, "False")
        demand_helm(plane, "upgrade", *release, str(CHART), *upgraded())
        with publisher(plane, token, daemon, tmp_path):
            until(lambda: has_own_taint(plane), "the taint")
    # What publishers of the other nodes wrote, and another agent wrote to one of them.
    for name in NODES[1:]:
        body = {"metadata": {"labels": {"vitald.io/status": "healthy"}}}
        write_status(plane, name, "vitald", body)
    write_status(plane, NODES[1], "vitald", FOREIGN)

    with running_helm(plane, "uninstall", *release) as job:  # its image cannot be pulled, say
        end_job(plane, job, "FailureTarget", "Failed", expected=1)
    with running_helm(plane, "uninstall", *release) as job:
        done = run_job(plane, job, tmp_path)
        assert (done.returncode, done.stdout) == (
            0,
            "deleted the ClusterRoleBinding vitald-publish\n"
            f"removed what vitald wrote from {len(NODES)} of {count_nodes(plane)} nodes\n",
        ), done.stderr
        # The publishers still run, and cannot write again what the Job removed.
        own = f"/api/v1/nodes/{NODES[0]}/status"
        assert plane.call("PATCH", own, {"metadata": {}}, token=token)[0] == 403
        end_job(plane, job, "SuccessCriteriaMet", "Complete", expected=0)
    assert {name: describe_node(plane, name) for name in NODES} == nodes
    listed = plane.kubectl(
        *("get", "serviceaccounts,configmaps,daemonsets,jobs,clusterroles,clusterrolebindings"),
        *("-A", "-l", "app.kubernetes.io/name=vitald", "-o", "name"),
    )
    assert listed == ""


@in_cluster
def test_turned_off_it_leaves_nothing(
    control_plane: ControlPlane, nodes: dict[str, Json], tmp_path: Path
) -> None:
    plane, release = control_plane, ("vitald", "--namespace", "helm-off")
    on, off = ((*WITH_IMAGE, "--set", f"publisher.enabled={value}") for value in ("true", "false"))
    demand_helm(plane, "install", *release, str(CHART), "--create-namespace", *on)
    for name in NODES:
        body = {"metadata": {"labels": {"vitald.io/status": "healthy"}}}
        write_status(plane, name, "vitald", body)
    with running_helm(plane, "upgrade", *release, str(CHART), *off) as job:
        end_job(plane, job, "FailureTarget", "Failed", expected=1)
    with running_helm(plane, "upgrade", *release, str(CHART), *off) as job:
        done = run_job(plane, job, tmp_path)
        assert done.returncode == 0, done.stderr
        end_job(plane, job, "SuccessCriteriaMet", "Complete", expected=0)
    assert {name: describe_node(plane, name) for name in NODES} == nodes
    # A further upgrade has nothing left to do; a removal checks again.
    demand_helm(plane, "upgrade", *release, str(CHART), *off)
    with running_helm(plane, "uninstall", *release) as job:
        done = run_job(plane, job, tmp_path)
        assert done.stdout.startswith("removed what vitald wrote from 0 of "), done
        end_job(plane, job, "SuccessCriteriaMet", "Complete", expected=0)


def upgraded() -> tuple[str, ...]:
    taint = "publisher.kubernetes.taint=NoSchedule"
    return (*WITH_IMAGE, "--set", "publisher.enabled=true", "--set", taint)


@contextmanager
def publisher(plane: ControlPlane, token: str, daemon: Node, folder: Path) -> Iterator[None]:
    """With the configuration that is in the cluster."""
    maps = plane.demand("GET", "/api/v1/namespaces/helm-life/configmaps/vitald-publish")
    text = maps["data"]["publish.toml"]
    text = text.replace('"/run/vitald"', f'"{daemon.runtime}"')
    text = text.replace('"/var/lib/vitald-publish"', f'"{folder}/state"')
    config = add_server(plane, text, token, folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "agent"), "NODE_NAME": NODES[0]}
    command = [PYTHON, "-m", "vitald", "publish", "--config", str(config)]
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield
        finally:
            process.terminate()


def add_server(plane: ControlPlane, text: str, token: str, folder: Path) -> Path:
    """In a pod these follow from its environment."""
    file = folder / "token"
    file.write_text(token)
    access = f'server = "{plane.server}"\nca = "{plane.certificate}"\ntoken_file = "{file}"\n'
    path = folder / "publish.toml"
    path.write_text(text.replace("[kubernetes]\n", f"[kubernetes]\n{access}"))
    return path


def await_condition(plane: ControlPlane, status: str) -> None:
    def says() -> bool:
        conditions = plane.read_node(NODES[0])["status"].get("conditions", ())
        return any(
            (each["type"], each["status"]) == ("vitald.io/Healthy", status) for each in conditions
        )

    until(says, f"vitald.io/Healthy={status}")


def has_own_taint(plane: ControlPlane) -> bool:
    taints = plane.read_node(NODES[0])["spec"]["taints"]
    return "vitald.io/unhealthy" in [taint["key"] for taint in taints]


def run_job(plane: ControlPlane, job: HelmJob, folder: Path) -> subprocess.CompletedProcess[str]:
    """The Job's command, with the token and the configuration of its pod."""
    document = plane.demand("GET", job.path)
    namespace, pod = document["metadata"]["namespace"], document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (volume,) = pod["volumes"]
    name = volume["configMap"]["name"]
    maps = plane.demand("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    token = plane.create_pod_token(NODES[1], namespace, pod["serviceAccountName"])
    config = add_server(plane, maps["data"]["publish.toml"], token, folder)
    program, *words = container["command"]
    assert (program, words[-2:]) == ("/usr/bin/vitald", ["--config", "/etc/vitald/publish.toml"])
    return subprocess.run(
        [PYTHON, "-m", "vitald", *words[:-1], str(config)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "agent")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


@dataclass(slots=True)
class HelmJob:
    """The Job of a hook that helm waits for."""

    helm: subprocess.Popen[str]
    path: str


@contextmanager
def running_helm(plane: ControlPlane, *arguments: str) -> Iterator[HelmJob]:
    namespace = arguments[arguments.index("--namespace") + 1]
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs/vitald-retire"
    _, before = plane.call("GET", path)
    with start_helm(plane, *arguments) as helm:
        try:
            until(
                lambda: (
                    plane.call("GET", path)[1].get("metadata", {}).get("uid")
                    not in (None, before.get("metadata", {}).get("uid"))
                ),
                "the hook's Job",
            )
            yield HelmJob(helm, path)
        finally:
            helm.kill()


def end_job(plane: ControlPlane, job: HelmJob, *types: str, expected: int) -> None:
    """As the controller of Jobs does, and then helm."""
    moment = "2026-01-01T00:00:00Z"
    has_failed = "Failed" in types
    status = {
        "conditions": [
            {"type": type_, "status": "True", "lastTransitionTime": moment, "lastProbeTime": moment}
            for type_ in types
        ],
        "startTime": moment,
        "uncountedTerminatedPods": {},
        **({"failed": 1} if has_failed else {"succeeded": 1, "completionTime": moment}),
    }
    plane.demand("PATCH", f"{job.path}/status", {"status": status})
    said, _ = job.helm.communicate(timeout=WAIT_S)
    assert job.helm.returncode == expected, said


def count_nodes(plane: ControlPlane) -> int:
    return len(plane.demand("GET", "/api/v1/nodes")["items"])
