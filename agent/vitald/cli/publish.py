"""
`vitald publish`: writes the node's state to Kubernetes and to files, in the foreground, as systemd
or a container runs it. `vitald publish kubernetes --retire` removes what was written; `vitald
publish sweep` corrects what silent publishers left in a cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from vitald.cli import EX_CONFIG, EX_UNAVAILABLE, UsageError
from vitald.cli.resident_memory import import_aiohttp
from vitald.log.settings import LogSettings
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.settings import PublishSettings

if TYPE_CHECKING:
    from vitald.config.values import Config


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=["kubernetes", "sweep"],
        help='"sweep": correct what silent publishers left, for the whole cluster. "kubernetes":'
        " with --retire",
    )
    parser.add_argument(
        "--retire",
        action="store_true",
        help="remove everything that was written to this node, and exit",
    )
    parser.add_argument(
        "--all-nodes",
        action="store_true",
        help="with --retire: from all nodes of the cluster, once no publisher runs",
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        help="with --all-nodes: credentials as kubectl uses them, which must be installed",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="with --all-nodes: only print what would be removed"
    )
    parser.add_argument(
        "--revoke",
        metavar="BINDING",
        help="with --all-nodes: first delete the ClusterRoleBinding of the publishers, so that none"
        " writes again",
    )
    parser.add_argument(
        "--pods",
        metavar="SELECTOR",
        help="with sweep: labels of the publishers' pods. Nodes without one are retired (default:"
        " none are)",
    )
    parser.add_argument(
        "--namespace",
        help="with sweep: of its Lease and of the pods (default: the variable POD_NAMESPACE)",
    )
    parser.add_argument(
        "--ready-file",
        type=Path,
        metavar="FILE",
        help="for a readiness probe: replaced every 5 s, says why the node's state is not written,"
        " and is empty while it is",
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=None,
        help="configuration file (default: /etc/vitald/config.toml if there)",
    )


_ALL_NODES, _SWEEP, _NOTHING_ELSE = "kubernetes --retire --all-nodes", "sweep", ""
# What each option is for, where it means nothing without.
_ONLY_FOR = {
    "all_nodes": _ALL_NODES,
    "kubeconfig": _ALL_NODES,
    "dry_run": _ALL_NODES,
    "revoke": _ALL_NODES,
    "pods": _SWEEP,
    "namespace": _SWEEP,
    "ready_file": _NOTHING_ELSE,
}


def _check_options(arguments: argparse.Namespace) -> None:
    """Raises UsageError."""
    if (arguments.what == "kubernetes") != arguments.retire:
        raise UsageError("to remove what was written: vitald publish kubernetes --retire")
    chosen = _ALL_NODES if arguments.retire and arguments.all_nodes else arguments.what or ""
    for name, needed in _ONLY_FOR.items():
        if getattr(arguments, name) and chosen != needed:
            command = f"vitald publish {needed}".rstrip()
            raise UsageError(f"--{name.replace('_', '-')} is for: {command}")


def run(arguments: argparse.Namespace) -> int:
    _check_options(arguments)
    gc.disable()  # start-up creates many objects, and nearly all of them stay
    from vitald.config.errors import ConfigError
    from vitald.config.file import find_default_file
    from vitald.log.output import configure_log
    from vitald.publish.config import load_config

    try:
        config = load_config(arguments.config or find_default_file())
    except ConfigError as error:
        return _report_failure(error.errors, EX_CONFIG)
    configure_log(config[LogSettings].level, config[LogSettings].format)
    import_aiohttp()
    if arguments.all_nodes or arguments.what == "sweep":
        return _run_for_cluster(arguments, config)
    if arguments.retire:
        gc.enable()
        return _retire(config)
    from vitald.publish.kubernetes.credentials import NoCredentials
    from vitald.publish.publisher import Publisher
    from vitald.publish.sinks import NoSink
    from vitald.publish.state_store import StateInUse
    from vitald.worker_thread import NoThread

    publisher = Publisher(config, arguments.ready_file)
    gc.collect()
    gc.freeze()
    gc.enable()
    try:
        asyncio.run(publisher.run())
    except NoSink as error:
        return _report_failure([str(error)], EX_CONFIG)
    except (NoCredentials, StateInUse, NoThread) as error:
        return _report_failure([str(error)], EX_UNAVAILABLE)
    return 0


def _run_for_cluster(arguments: argparse.Namespace, config: Config) -> int:
    from vitald.cli import publish_cluster
    from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable
    from vitald.publish.kubernetes.credentials import NoCredentials
    from vitald.publish.sink import SinkFailed

    gc.collect()
    gc.freeze()
    gc.enable()
    try:
        if arguments.what == "sweep":
            publish_cluster.sweep(
                config, pods=arguments.pods or "", namespace=arguments.namespace or ""
            )
        else:
            publish_cluster.retire_all_nodes(
                config[KubernetesSettings],
                kubeconfig=arguments.kubeconfig,
                binding=arguments.revoke or "",
                dry_run=arguments.dry_run,
            )
    except (ApiRefused, ApiUnreachable, NoCredentials, SinkFailed) as error:
        return _report_failure([f"API server: {error}"], EX_UNAVAILABLE)
    return 0


def _retire(config: Config) -> int:
    from vitald.publish.kubernetes.credentials import NoCredentials
    from vitald.publish.kubernetes.retire import NotRetired, retire_node
    from vitald.publish.sinks import open_client
    from vitald.publish.state_store import StateInUse, StateStore, lock_state
    from vitald.worker_thread import NoThread

    async def retire() -> list[str]:
        folder, settings = config[PublishSettings].state, config[KubernetesSettings]
        with lock_state(folder), closing(StateStore(folder, may_create=False)) as store:
            async with open_client(settings) as client:
                return await retire_node(client, settings, store)

    try:
        removed = asyncio.run(retire())
    except StateInUse as error:
        return _report_failure([f"{error}: stop it first, it would write again"], EX_UNAVAILABLE)
    except (NoCredentials, NotRetired, NoThread) as error:
        return _report_failure([str(error)], EX_UNAVAILABLE)
    print("\n".join(removed or ["nothing of vitald is on the node"]))
    return 0


def _report_failure(errors: list[str], code: int) -> int:
    """On standard error, and to systemd: `systemctl status` shows the first."""
    from vitald.systemd import Notifier

    print("\n".join(f"vitald: {line}" for line in errors), file=sys.stderr)
    Notifier().notify_status(" ".join(errors[0].split())[:500])
    return code
