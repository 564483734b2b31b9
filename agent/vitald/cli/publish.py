"""
`vitald publish`: writes the node's state to Kubernetes and to files, in the foreground, as systemd
or a container runs it. `vitald publish kubernetes --retire` removes what was written.
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
from vitald.cli.config_options import find_default_file
from vitald.cli.memory import import_aiohttp

if TYPE_CHECKING:
    from vitald.publish.config import PublisherConfig
    from vitald.publish_sections import KubernetesSettings


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sink", nargs="?", choices=["kubernetes"], help="with --retire: where to remove it"
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
        "--config",
        type=Path,
        default=None,
        help="configuration file (default: /etc/vitald/config.toml if there)",
    )


def run(arguments: argparse.Namespace) -> int:
    if (arguments.sink is not None) != arguments.retire:
        raise UsageError("to remove what was written: vitald publish kubernetes --retire")
    if arguments.all_nodes and not arguments.retire:
        raise UsageError("--all-nodes is for: vitald publish kubernetes --retire --all-nodes")
    gc.disable()  # start-up creates many objects, and nearly all of them stay
    from vitald import log
    from vitald.config_file import ConfigError
    from vitald.publish.config import load_config

    try:
        config = load_config(arguments.config or find_default_file())
    except ConfigError as error:
        return _report_failure(error.errors, EX_CONFIG)
    log.configure_log(config.log.level, config.log.format)
    import_aiohttp()
    if arguments.retire:
        gc.enable()
        return _retire_all_nodes(config.kubernetes) if arguments.all_nodes else _retire(config)
    from vitald.publish.kubernetes.credentials import NoCredentials
    from vitald.publish.publisher import Publisher
    from vitald.publish.sinks import NoSink
    from vitald.publish.state_store import StateInUse
    from vitald.worker_thread import NoThread

    publisher = Publisher(config)
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


def _retire_all_nodes(settings: KubernetesSettings) -> int:
    from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable
    from vitald.publish.kubernetes.credentials import NoCredentials
    from vitald.publish.kubernetes.retire_cluster import ClusterClient, retire_cluster
    from vitald.publish.sink import SinkFailed
    from vitald.publish.sinks import find_access

    async def retire() -> tuple[int, int]:
        client = ClusterClient(find_access(settings), "")
        async with client:
            return await retire_cluster(client, settings.prefix)

    try:
        nodes, changed = asyncio.run(retire())
    except (ApiRefused, ApiUnreachable, NoCredentials, SinkFailed) as error:
        return _report_failure([f"API server: {error}"], EX_UNAVAILABLE)
    print(f"removed what vitald wrote from {changed} of {nodes} nodes")
    return 0


def _retire(config: PublisherConfig) -> int:
    from vitald.publish.kubernetes.credentials import NoCredentials
    from vitald.publish.kubernetes.retire import NotRetired, retire_node
    from vitald.publish.sinks import open_client
    from vitald.publish.state_store import StateInUse, StateStore, lock_state
    from vitald.worker_thread import NoThread

    async def retire() -> list[str]:
        folder, settings = config.publish.state, config.kubernetes
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
