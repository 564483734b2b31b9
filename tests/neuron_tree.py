"""Trainium and Inferentia machines as folders: what aws-neuron-driver 2.24 and 2.30 show."""

from __future__ import annotations

from pathlib import Path

from tests.trees import AMAZON, Tree

_STATUS = [
    *("success", "timeout", "hw_error", "hw_hbm_ue_error", "hw_nc_ue_error", "hw_dma_abort_error"),
    *("hw_collectives_error", "hw_repairable_hbm_ue_error", "exec_bad_input"),
]
_FAMILIES = {  # PCI id, cores, device, whether its firmware reports health
    "Inf1": (0x7064, 4, "Inferentia", False),
    "Trn1": (0x7164, 2, "Trainium1", False),
    "Inf2": (0x7264, 2, "Inferentia2", False),
    "Trn2": (0x7364, 8, "Trainium2", True),
    "Trn3": (0x7564, 8, "Trainium3", True),
}
TRN2 = [
    f"0000:{bus}:00.0"
    for bus in (
        "cc",
        "b5",
        "b6",
        "cb",
        "6f",
        "58",
        "59",
        "6e",
        "9b",
        "84",
        "85",
        "9a",
        "f8",
        "e1",
        "e2",
        "f7",
    )
]


class NeuronTree(Tree):
    """A machine with Neuron devices at these addresses, in the order of their indexes."""

    def __init__(
        self,
        root: Path,
        addresses: list[str] | None = None,
        *,
        family: str = "Trn2",
        driver: str = "2.30.2.0",
        machine: str = "trn2.48xlarge",
    ) -> None:
        super().__init__(root)
        self.addresses = TRN2 if addresses is None else addresses
        self.family, self.driver = family, driver
        self.machine(machine)
        self.module("neuron", driver)
        (root / "class/neuron_device").mkdir(parents=True)
        for index in range(len(self.addresses)):
            self.add(index)

    def serial(self, index: int) -> str:
        return f"{0x1234ABCD0000 + index:016x}"

    def path(self, index: int, file: str = "") -> str:
        return f"devices/virtual/neuron_device/neuron{index}/{file}".rstrip("/")

    def put(self, index: int, file: str, content: object) -> None:
        self.write(self.path(index, file), content)

    def add(self, index: int) -> None:
        pci_id, cores, name, health = _FAMILIES[self.family]
        new = self.driver.startswith("2.30")
        self.pci(self.addresses[index], AMAZON, pci_id, 0x088000, "neuron-driver")
        self.link(f"class/neuron_device/neuron{index}", self.path(index))
        files: dict[str, object] = {
            "reset": 1,
            "info/serial_number": self.serial(index),
            "info/architecture/instance_type": self.family,
            "info/architecture/device_name": name,
            "stats/memory_usage/host_mem/tensors/present": 4096,
            "stats/power/utilization": "POWER_STATUS_VALID,1763635200,5.00,60.00,32.50",
            **{
                f"stats/hardware/{kind}": 0
                for kind in (
                    "sram_ecc_uncorrected",
                    "mem_ecc_uncorrected",
                    "mem_ecc_repairable_uncorrected",
                )
            },
        }
        if (
            self.family == "Inf1"
        ):  # v1 of the driver adds neither a serial number nor stats/hardware
            files = {
                file: content
                for file, content in files.items()
                if not file.startswith(("stats/hardware", "info/serial"))
            }
        if new:
            files |= {
                "fw_api_version": 6,
                "stats/hardware/sram_ecc_corrected": 0,
                "stats/hardware/mem_ecc_corrected": 0,
            }
        if new and health:
            status = "stats/hardware/health_status"
            files |= {
                f"{status}/unhealthy_components": "",
                f"{status}/healthcheck_heartbeat": 7,
                f"{status}/hw_error_event": 0,
            }
        for core in range(cores):
            folder = f"neuron_core{core}/stats"
            files |= {f"{folder}/status/{counter}/total": 0 for counter in _STATUS}
            files |= {
                f"{folder}/other_info/reset_req_count/total": 1,
                f"{folder}/other_info/reset_fail_count/total": 0,
            }
            files[f"{folder}/memory_usage/device_mem/present"] = 1 << 20
        for file, content in files.items():
            self.put(index, file, content)

    # --- what befalls it

    def count(self, index: int, core: int, counter: str, total: int) -> None:
        self.put(index, f"neuron_core{core}/stats/status/{counter}/total", total)

    def ecc(self, index: int, kind: str, count: int) -> None:
        self.put(index, f"stats/hardware/{kind}", count)

    def lose_link(self, index: int) -> None:
        """Its PCI function reads all ones."""
        self.write(
            f"devices/pci{self.addresses[index][:7]}/{self.addresses[index]}/config", b"\xff" * 64
        )

    def add_counters(self, index: int) -> None:
        for kind in (
            "sram_ecc_uncorrected",
            "mem_ecc_uncorrected",
            "mem_ecc_repairable_uncorrected",
        ):
            self.ecc(index, kind, 0)

    def lose(self, index: int) -> None:
        """It falls off the bus: every register reads all ones."""
        self.lose_link(index)
        self.ecc(index, "sram_ecc_uncorrected", 0xFFFF)
        self.ecc(index, "mem_ecc_uncorrected", 60)
        self.put(index, "info/serial_number", "f" * 16)

    def reset(self, index: int, state: int) -> None:
        """0 while it is being reset (error counters read 0), 1 when that is over, 2 when it
        failed.
        """
        self.put(index, "reset", state)
        if self.driver.startswith("2.30"):
            self.put(index, "fw_api_version", "busy" if state == 0 else 6)
        if state == 0:
            self.put(index, "info/serial_number", "")
            for kind in (
                "sram_ecc_uncorrected",
                "mem_ecc_uncorrected",
                "mem_ecc_repairable_uncorrected",
            ):
                self.ecc(index, kind, 0)
        else:
            self.put(index, "info/serial_number", self.serial(index))

    def reorganise(self, index: int, version: str = "2.31.7.0") -> None:
        """A driver that has the error counters somewhere else. Where, is made up here: the new
        places are not known.
        """
        self.module("neuron", version)
        (self.root / self.path(index, "stats/hardware")).rename(
            self.root / self.path(index, "stats/elsewhere")
        )

    def unprobe(self, index: int) -> None:
        """The function is there, and the driver has no entry for it."""
        self.remove(f"class/neuron_device/neuron{index}")
        self.remove(self.path(index))
        self.remove(f"devices/pci{self.addresses[index][:7]}/{self.addresses[index]}/driver")

    def unplug(self, index: int) -> None:
        self.unprobe(index)
        self.remove(f"bus/pci/devices/{self.addresses[index]}")

    def unload(self) -> None:
        for index in range(len(self.addresses)):
            self.unprobe(index)
        self.remove("module/neuron")
