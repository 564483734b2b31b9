"""
The all-reduce of `nccl` again, but over the node's network adapters: peer access, shared memory and
NVLink SHARP are off, so that NCCL sends even between two GPUs of the node through its network. It
loads each adapter, its PCIe path to the GPUs and GPUDirect RDMA, without a second node.

A run counts only if NCCL names a network other than its TCP sockets.

Source: NCCL's documentation of NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_NVLS_ENABLE; NCCL
src/init.cc 2.12 to 2.30 ("Using network"); azurehpc-health-checks does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vitald.collectors.small_files import describe_error, list_names
from vitald.config import Config
from vitald.diagnostics.check import Check
from vitald.diagnostics.checks.nccl import NcclCheck
from vitald.diagnostics.nccl_output import NcclOutput
from vitald.diagnostics.run import tool
from vitald.diagnostics_sections import Nccl as NcclSettings
from vitald.model.diagnostic import Outcome, Remedy, Report

NAME = "nccl_network"
_SOCKETS = "Socket"  # NCCL's network where it finds no adapter that it can use


class NcclNetworkCheck(NcclCheck):
    """One run of all_reduce_perf over the network adapters."""

    name = NAME
    title = "NCCL all-reduce over this node's network adapters"
    environment: Mapping[str, str] = MappingProxyType(
        {
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT",
        }
    )

    @staticmethod
    def get_settings(config: Config) -> NcclSettings:
        return config.nccl_network

    def find_obstacle(self) -> str:
        return super().find_obstacle() or self._explain_no_adapter()

    def find_other_obstacle(self, output: NcclOutput) -> Report | None:
        if output.network == _SOCKETS:
            return tool.report_misconfigured(
                "NCCL used TCP sockets, not the RDMA adapters: its plugin, a library of theirs or"
                " the right to open them is missing"
            )
        if not output.network:
            return Report(
                outcome=Outcome.INCONCLUSIVE,
                reason="all_reduce_perf: NCCL does not say which network it used",
                remedy=Remedy.RETRY,
            )
        return None

    def _explain_no_adapter(self) -> str:
        classes = self._sysfs / "class" / "infiniband"
        try:
            return "" if list_names(classes) else f"there is no RDMA device in {classes}"
        except OSError as error:
            return f"{classes}: {describe_error(error)}"


def build_check(config: Config) -> Check:
    return NcclNetworkCheck(config)
