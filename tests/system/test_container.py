"""
The container and the Kubernetes manifests: what they say agrees with itself, with the code, and
with what their document claims; and the two scripts of the image do what they are for. Whether the
whole runs takes a container's runtime, and is tried by hand (packaging/container/README.md).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness import PYTHON, ROOT, Node
from tests.probe import run_probe
from tests.system.lines import xid
from tests.waiting import WAIT_S
from vitald import __version__
from vitald.cli import build_parser
from vitald.collectors.host.settings import HostSettings
from vitald.config.file import DEFAULT_PATH
from vitald.config.paths import Paths
from vitald.config.sections import load_config
from vitald.metrics.settings import MetricsSettings
from vitald.publish.kubernetes.credentials import SERVICE_ACCOUNT
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.settings import PublishSettings
from vitald.server.settings import find_socket

CONTAINER, KUBERNETES = ROOT / "packaging/container", ROOT / "packaging/kubernetes"
COMPONENT = KUBERNETES / "publish"
CONTAINERFILE = (CONTAINER / "Containerfile").read_text("utf-8")
UID = 10001
OWN_CONFIG = Path("/etc/vitald/publish.toml")  # of the publisher
NO_FURTHER = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
Json = dict[str, Any]


@cache
def manifest(name: str) -> Json:
    """The one document of a file; a key that is there twice is a mistake."""
    loaded: Json = yaml.load((KUBERNETES / f"{name}.yaml").read_text("utf-8"), Loader=Strict)
    return loaded


class Strict(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"{keys} at {node.start_mark}"
        return super().construct_mapping(node, deep)


def pod() -> Json:
    spec: Json = manifest("daemonset")["spec"]["template"]["spec"]
    return spec


def vitald() -> Json:
    (container,) = pod()["containers"]
    return container  # type: ignore[no-any-return]


def mounts(container: Json) -> dict[str, Json]:
    """Where in the container -> the mount, with its volume."""
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    return {
        mount["mountPath"]: {**mount, **volumes[mount["name"]]}
        for mount in container["volumeMounts"]
    }


@pytest.mark.core
def test_every_manifest_is_named_and_every_name_is_there() -> None:
    """In kustomization.yaml, be it as a choice in a comment."""
    for folder in (KUBERNETES, COMPONENT):
        text = (folder / "kustomization.yaml").read_text("utf-8")
        entries = re.findall(r"- (?:path: )?([\w-]+\.yaml)|\[([\w-]+(?:\.toml)?)\]", text)
        named = {file or other for file, other in entries}
        assert named == {path.name for path in folder.iterdir()} - {"kustomization.yaml"}
    kinds = {
        name: manifest(name)["kind"]
        for name in sorted(path.stem for path in KUBERNETES.glob("*.yaml"))
        if name not in ("recovery", "openshift")  # several objects
    }
    assert kinds == {
        **dict.fromkeys(("daemonset", "device-plugin", "gpu-operator", "nvidia"), "DaemonSet"),
        **dict.fromkeys(("privileged", "host-network", "selinux"), "DaemonSet"),
        "kustomization": "Kustomization",
        "namespace": "Namespace",
        "network-policy": "NetworkPolicy",
        "quota": "ResourceQuota",
        "pod-monitor": "PodMonitor",
        "pod-monitor-large-fleet": "PodMonitor",
        "prometheus-rule": "PrometheusRule",
        "service-account": "ServiceAccount",
    }
    (image,) = manifest("kustomization")["images"]
    assert (image["name"], image["newTag"]) == (vitald()["image"], __version__)
    assert {one["image"] for one in pod()["initContainers"]} == {image["name"]}
    for patch, kind in kinds.items():
        if kind != "DaemonSet":
            continue
        assert manifest(patch)["metadata"]["name"] == manifest("daemonset")["metadata"]["name"]


def test_the_pod_is_an_ordinary_user_with_one_capability() -> None:
    security = pod()["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"], security["runAsGroup"]) == (
        True,
        UID,
        UID,
    )
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert vitald()["securityContext"] == {
        **NO_FURTHER,
        "capabilities": {"drop": ["ALL"], "add": ["SYSLOG"]},
    }
    assert not any(pod()[name] for name in ("hostNetwork", "hostPID", "hostIPC"))
    assert (
        pod()["automountServiceAccountToken"],
        manifest("service-account")["automountServiceAccountToken"],
    ) == (False, False)
    (folders,) = pod()["initContainers"]
    own = {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "runAsGroup": 0,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
    }
    assert folders["securityContext"] == {**NO_FURTHER, **own}
    assert folders["command"] == ["/usr/bin/chown", f"{UID}:{UID}", *mounts(folders)]


def test_the_image_has_the_same_user_and_the_capability_of_the_manifest() -> None:
    assert f"groupadd --system --gid {UID} " in CONTAINERFILE
    assert f"useradd --system --uid {UID} --gid {UID} " in CONTAINERFILE
    assert re.findall(r"^USER (.*)", CONTAINERFILE, re.MULTILINE) == [f"{UID}:{UID}"]
    (capability,) = vitald()["securityContext"]["capabilities"]["add"]
    assert f"setcap cap_{capability.lower()}=ep /usr/bin/vitald-python" in CONTAINERFILE
    assert 'ENTRYPOINT ["/usr/bin/vitald-python", ' in CONTAINERFILE  # and no shell before it
    assert "-perm /6000 -type f -exec chmod ug-s" in CONTAINERFILE
    for source in re.findall(
        r"^COPY (?:--chmod=\d+ )?(packaging/\S+) ", CONTAINERFILE, re.MULTILINE
    ):
        assert (ROOT / source).is_file(), source
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        (command,) = vitald()[probe]["exec"]["command"]
        assert f"packaging/container/healthy {command}\n" in CONTAINERFILE


def test_privileged_opens_the_device_and_changes_nothing_else() -> None:
    patch = manifest("privileged")["spec"]["template"]["spec"]
    (container,) = patch["containers"]
    assert container["securityContext"] == {"privileged": True, "allowPrivilegeEscalation": True}
    (mount,), (volume,) = container["volumeMounts"], patch["volumes"]
    assert (mount["mountPath"], mount["readOnly"], volume["hostPath"]["path"]) == (
        "/dev/kmsg",
        True,
        "/dev/kmsg",
    )
    assert set(patch) == {"containers", "volumes"} and set(container) == {
        "name",
        "securityContext",
        "volumeMounts",
    }


def test_the_folders_are_those_of_the_configuration() -> None:
    """What vitald is told to use is mounted there, and only its own two folders for writing."""
    settings = load_config(KUBERNETES / "config.toml")
    here = mounts(vitald())
    assert str(DEFAULT_PATH.parent) in here
    for path, writable in (
        (settings[Paths].state, True),
        (settings[Paths].runtime, True),
        (settings[Paths].sysfs, False),
    ):
        assert here[str(path)].get("readOnly", False) is not writable, path
    assert {path for path, mount in here.items() if not mount.get("readOnly")} == {
        str(settings[Paths].state),
        str(settings[Paths].runtime),
    }
    assert here[str(settings[Paths].sysfs)]["hostPath"]["path"] == "/sys"
    for path in (
        settings[Paths].state,
        settings[Paths].runtime,
    ):  # on the node, programs look for them where a package would have them
        assert here[str(path)]["hostPath"] == {"path": str(path), "type": "DirectoryOrCreate"}
    assert [Path(path) for path in settings[HostSettings].mounts] == [Path("/var/log")]
    assert settings[MetricsSettings].listen is not None
    (port,) = vitald()["ports"]
    assert (port["containerPort"], settings[MetricsSettings].listen.host) == (
        settings[MetricsSettings].listen.port,
        "0.0.0.0",
    )
    for monitor in ("pod-monitor", "pod-monitor-large-fleet"):
        endpoints = manifest(monitor)["spec"]["podMetricsEndpoints"]
        assert {endpoint["port"] for endpoint in endpoints} == {port["name"]}


@pytest.mark.core
@pytest.mark.parametrize("fleet", ["", "-large-fleet"])
def test_pods_are_scraped_as_nodes_are(fleet: str) -> None:
    """The job, the interval and the tier, as in the scrape configuration for nodes."""
    text = (ROOT / f"packaging/prometheus/scrape{fleet}.yml").read_text("utf-8")
    of_nodes = [
        (job["job_name"], job["scrape_interval"], job.get("params"))
        for job in yaml.load(text, Loader=Strict)["scrape_configs"]
    ]
    spec = manifest(f"pod-monitor{fleet}")["spec"]
    by_default = manifest("daemonset")["spec"]["template"]["metadata"]["labels"][spec["jobLabel"]]
    assert of_nodes == [
        (find_job(endpoint) or by_default, endpoint["interval"], endpoint.get("params"))
        for endpoint in spec["podMetricsEndpoints"]
    ]


def find_job(endpoint: Json) -> str:
    """The job that an endpoint gives itself."""
    relabelings = endpoint["relabelings"]
    return "".join(one["replacement"] for one in relabelings if one.get("targetLabel") == "job")


def test_it_runs_where_a_node_is_ill_and_asks_for_what_was_measured() -> None:
    assert pod()["tolerations"] == [{"operator": "Exists"}]
    assert pod()["priorityClassName"] == "system-node-critical"
    assert (
        manifest("daemonset")["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0
    )  # two daemons cannot share a ledger
    unit = (ROOT / "systemd/vitald.service").read_text("utf-8")
    limits = vitald()["resources"]["limits"]
    assert "MemoryMax=256M\n" in unit
    assert limits == {"memory": "256Mi"}
    assert "cpu" not in limits


def publisher() -> Json:
    (container,) = publisher_patch()["containers"]
    return container  # type: ignore[no-any-return]


def publisher_patch() -> Json:
    spec: Json = manifest("publish/publish")["spec"]["template"]["spec"]
    return spec


def test_the_publisher_has_the_token_and_no_capability() -> None:
    """The daemon has no token: only the publisher's container mounts it."""
    assert publisher()["securityContext"] == {**NO_FURTHER, "capabilities": {"drop": ["ALL"]}}
    volumes = {volume["name"]: volume for volume in publisher_patch()["volumes"]}
    own = {mount["name"]: mount for mount in publisher()["volumeMounts"]}
    assert set(volumes) == {"publish-config", "publish-state", "publish-runtime", "api-token"}
    assert set(own) == {*volumes, "runtime"}
    assert own["api-token"]["mountPath"] == str(SERVICE_ACCOUNT)
    token, authority = volumes["api-token"]["projected"]["sources"]
    assert token["serviceAccountToken"] == {"path": "token", "expirationSeconds": 3600}
    assert authority["configMap"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert {name for name, mount in own.items() if not mount.get("readOnly")} == {
        "publish-state",
        "publish-runtime",
    }
    assert volumes["publish-runtime"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Mi"}
    (folders,) = publisher_patch()["initContainers"]
    assert folders["command"] == [*pod()["initContainers"][0]["command"], "/var/lib/vitald-publish"]
    (name,) = [each for each in publisher()["env"] if each["name"] == "NODE_NAME"]
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_the_folders_of_the_publisher_are_those_of_its_configuration() -> None:
    settings = load_config(COMPONENT / "publish.toml")
    own = {mount["mountPath"]: mount for mount in publisher()["volumeMounts"]}
    assert find_socket(settings) == find_socket(load_config(KUBERNETES / "config.toml"))
    assert {str(settings[PublishSettings].state), str(settings[Paths].runtime)} <= own.keys()
    assert settings[KubernetesSettings].enabled
    arguments = build_parser(["publish"]).parse_args(publisher()["command"][1:])
    assert (arguments.what, arguments.config) == (None, OWN_CONFIG)
    assert {str(OWN_CONFIG.parent), str(arguments.ready_file.parent)} <= own.keys()


def test_the_rights_are_those_that_the_client_needs() -> None:
    documents = yaml.safe_load_all((COMPONENT / "rbac.yaml").read_text("utf-8"))
    (role, _) = documents
    assert [(rule["resources"], rule["verbs"]) for rule in role["rules"]] == [
        (["nodes"], ["get", "list", "watch"]),
        (["nodes/status"], ["patch"]),
        (["events"], ["create"]),
    ]


def test_the_sweep_needs_nothing_of_its_node() -> None:
    (deployment, *_) = yaml.safe_load_all((COMPONENT / "sweep.yaml").read_text("utf-8"))
    spec: Json = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["securityContext"] == {**NO_FURTHER, "capabilities": {"drop": ["ALL"]}}
    assert not any("hostPath" in volume for volume in spec["volumes"])
    folders = {
        mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
    }
    assert folders == {str(load_config(COMPONENT / "publish.toml")[Paths].runtime)}
    words = container["command"][1:]
    arguments = build_parser(["publish"]).parse_args(words)
    assert (arguments.what, arguments.config) == ("sweep", OWN_CONFIG)
    assert container["readinessProbe"]["exec"]["command"] == ["/usr/bin/vitald-healthy", "sweep"]


def test_the_sweeps_probe_finds_one_that_does_not_succeed(tmp_path: Path) -> None:
    place, file = '"/run/vitald/sweep"', tmp_path / "sweep"
    never = run_probe(place, f'"{file}"', "sweep")
    assert (never.returncode, "Traceback" in never.stderr) == (1, False)
    file.touch()
    assert run_probe(place, f'"{file}"', "sweep").returncode == 0
    os.utime(file, (time.time() - 200, time.time() - 200))
    late = run_probe(place, f'"{file}"', "sweep")
    assert (late.returncode, "has succeeded for 200 s" in late.stderr) == (1, True)


def probe(path: Path) -> subprocess.CompletedProcess[str]:
    """The image's probe, with a socket elsewhere."""
    return run_probe('"/run/vitald/vitald.sock", 5.0', f'"{path}", 0.5')


def test_the_publishers_probe_finds_one_that_hangs() -> None:
    """And takes one that only waits for well: it wakes by itself."""
    (probe_of,) = (publisher()["livenessProbe"]["exec"]["command"],)
    assert probe_of == ["/usr/bin/vitald-healthy", "publish"]
    place = '"/proc/1/status", 15.0'
    with subprocess.Popen(["sh", "-c", "while sleep 0.1; do :; done"]) as waking:
        elsewhere = f'"/proc/{waking.pid}/status"'
        assert run_probe(place, f"{elsewhere}, 15.0", "publish").returncode == 0
        waking.send_signal(signal.SIGSTOP)
        done = run_probe(place, f"{elsewhere}, 1.0", "publish")
        waking.kill()
    assert (done.returncode, "has not run for 1 s" in done.stderr) == (1, True)
    gone = run_probe(place, f"{elsewhere}, 1.0", "publish")
    assert (gone.returncode, "Traceback" in gone.stderr) == (1, False)


def test_the_publishers_readiness_is_its_own_word(tmp_path: Path) -> None:
    """And only while it runs. A clock that was set back is noticed, too."""
    assert publisher()["readinessProbe"]["exec"]["command"] == [
        "/usr/bin/vitald-healthy",
        "published",
    ]
    arguments = build_parser(["publish"]).parse_args(publisher()["command"][1:])
    place, file = f'"{arguments.ready_file}"', tmp_path / "ready"
    never = run_probe(place, f'"{file}"', "published")
    assert (never.returncode, "Traceback" in never.stderr) == (1, False)
    file.touch()
    assert run_probe(place, f'"{file}"', "published").returncode == 0
    for moment in (time.time() - 60, time.time() + 3600):
        os.utime(file, (moment, moment))
        late = run_probe(place, f'"{file}"', "published")
        assert (late.returncode, "the publisher does not run" in late.stderr) == (1, True)
    file.write_text("kubernetes: API server: 403: no right")
    refused = run_probe(place, f'"{file}"', "published")
    assert (refused.returncode, refused.stderr) == (1, "kubernetes: API server: 403: no right\n")


def test_the_probe_asks_whether_vitald_works_and_not_how_the_node_is(node: Node) -> None:
    assert probe(node.socket).returncode == 0
    node.write(xid(1))
    node.wait(lambda status: status["status"] == "unhealthy")
    assert probe(node.socket).returncode == 0
    node.stop()
    done = probe(node.socket)
    assert (done.returncode, str(node.socket) in done.stderr, "Traceback" in done.stderr) == (
        1,
        True,
        False,
    )


@pytest.mark.parametrize("answer", [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"", b"200", None])
def test_the_probe_takes_nothing_else_for_health(tmp_path: Path, answer: bytes | None) -> None:
    """Not a refusal, an empty or a strange answer, nor silence."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()

        def serve() -> None:
            asked, _ = listening.accept()
            with asked:
                asked.recv(4096)
                if answer is None:
                    over.wait(WAIT_S)
                else:
                    asked.sendall(answer)

        over = threading.Event()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        done = probe(tmp_path / "s")
        over.set()
        thread.join(WAIT_S)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)


def start(tmp_path: Path, kmsg: Path, *arguments: str) -> str:
    """What the program sees that the image's entry point becomes: its arguments, and the file that
    it was handed.
    """
    becomes = tmp_path / "vitald"
    becomes.write_text('#!/bin/sh\necho "$*: $(cat)"\n')
    becomes.chmod(0o755)
    script = (CONTAINER / "start").read_text("utf-8")
    assert '"/dev/kmsg"' in script and '"/usr/bin/vitald"' in script
    script = script.replace('"/dev/kmsg"', f'"{kmsg}"').replace('"/usr/bin/vitald"', f'"{becomes}"')
    done = subprocess.run(
        [PYTHON, "-IS", "-c", script, *arguments],
        capture_output=True,
        input="mine",
        text=True,
        timeout=WAIT_S,
    )
    return done.stdout + done.stderr


def test_the_entry_point_hands_over_the_kernel_log(tmp_path: Path) -> None:
    """To the daemon, as its standard input; other verbs keep their own, and a log that cannot be
    opened is said.
    """
    kmsg = tmp_path / "kmsg"
    kmsg.write_text("a record")
    assert start(tmp_path, kmsg, "run", "--config", "x") == "run --config x: a record\n"
    assert start(tmp_path, kmsg, "scan", "-") == "scan -: mine\n"
    said = start(tmp_path, tmp_path / "absent", "run")
    assert said.startswith("run: mine\n") and "absent: No such file or directory" in said
