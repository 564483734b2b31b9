"""Which record is what: the shapes of the catalogue, the records that belong together, and the
forgeries.
"""

from __future__ import annotations

import re

import pytest

from tests.named import OF_A_PROCESS
from tests.unit.builders import catalogue, recognise, recogniser, seen
from vitald.catalog import Catalog
from vitald.catalog.shape import MACROS, first_letters
from vitald.collectors.kernel_log.record import escape

SAMPLES = [(rule.code, sample) for rule in catalogue().rules.values() for sample in rule.samples]


@pytest.mark.parametrize("profile", ["nvidia", "hyperpod"])
def test_every_sample_is_claimed_by_its_own_rule(profile: str) -> None:
    """A profile changes what is asked for, never what is seen."""
    known = recogniser(profile)
    found = [(known.parse_record(sample.encode()), code, sample) for code, sample in SAMPLES]
    assert [
        (parsed, code, sample)
        for parsed, code, sample in found
        if parsed is None or parsed.code != code
    ] == []


def test_every_rule_that_has_shapes_has_a_sample() -> None:
    assert [
        rule.code for rule in catalogue().rules.values() if rule.match and not rule.samples
    ] == []


def test_shapes_are_anchored() -> None:
    """What stands behind other words, or in the middle of a process name, is another record."""
    wrong = []
    for code, sample in SAMPLES:
        if code in ("oom/invoked", "crash/segfault"):  # begin with any name
            continue
        for before in ("x", " ", "a: ", "python3[4021]: ", "a\n", '"'):
            expected = before == "x" and (
                code.startswith("aer/")
                or ("AMD-Vi" in sample and not sample.startswith(("AMD-Vi", "iommu")))
            )  # begins with any driver's name
            if (recognise(before + sample) is not None) is not expected:
                wrong.append(before + sample)
    assert wrong == []


def test_escaped_and_plain_records_are_the_same() -> None:
    plain = recogniser().parse_record("nfs: server café not responding, still trying".encode())
    escaped = recogniser().parse_record(rb"nfs: server caf\xc3\xa9 not responding, still trying")
    assert plain is not None
    assert plain == escaped


@pytest.mark.parametrize(
    ("line", "labels"),
    [
        (
            "Out of memory: Killed process 4021 (a) b (c)) total-vm:1kB, anon-rss:1kB",
            (None, 4021, "a) b (c)"),
        ),
        (
            "INFO: task kworker/u16:4:295 blocked for more than 122 seconds.",
            (None, 295, "kworker/u16:4"),
        ),
        (
            "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [a:b] c:2254956]",
            (None, 2254956, "a:b] c"),
        ),
        (
            "pcieport 0000:80:01.0: AER: Uncorrected (Fatal) error received: 0000:81:00.0",
            ("0000:80:01.0", None, None),
        ),
        ("mlx5_core 0000:5C:00.0 enp92s0np0: Link down", ("0000:5c:00.0", None, None)),
    ],
)
def test_names_and_addresses(line: str, labels: tuple[str | None, int | None, str | None]) -> None:
    found = seen(line)
    assert (found.pci, found.pid, found.process) == labels


def test_the_blamed_device_is_kept_beside_the_reporting_port() -> None:
    line = "pcieport 0000:80:01.0: AER: Uncorrected (Fatal) error received: 0000:81:00.0"
    assert seen(line).fields["blamed"] == "0000:81:00.0"


# --- the device that the driver's probe did not reach: the address stands in a record before

PROBE = "NVRM: The NVIDIA GPU 0000:18:00.0"
INSTALLED = "NVRM: (PCI ID: 10de:2330) installed in this system has"
LOST = "NVRM: fallen off the bus and is not responding to commands."


def probed(*lines: str) -> list[str | None]:
    known = recogniser()
    found = [known.parse_record(line.encode()) for line in lines]
    return [f"{parsed.code}@{parsed.pci}" if parsed is not None else None for parsed in found]


def test_the_address_of_a_probe_is_carried_over() -> None:
    assert probed(PROBE, INSTALLED, LOST) == [None, None, "gpu_lost/not_responding@0000:18:00.0"]
    assert probed(PROBE, LOST) == [None, "gpu_lost/not_responding@0000:18:00.0"]


def test_other_devices_records_may_come_between() -> None:
    lines = (PROBE, "usb 1-1: new device", INSTALLED, "pci 0000:3b:00.0: BAR 1", LOST)
    assert probed(*lines)[-1] == "gpu_lost/not_responding@0000:18:00.0"


def test_an_address_is_used_once_and_not_kept_for_long() -> None:
    assert probed(PROBE, LOST, LOST)[1:] == [
        "gpu_lost/not_responding@0000:18:00.0",
        "gpu_lost/not_responding@None",
    ]
    assert probed(PROBE, INSTALLED, "NVRM: one", LOST)[-1] == "gpu_lost/not_responding@None"
    assert probed(LOST) == ["gpu_lost/not_responding@None"]


def test_the_latest_probe_counts() -> None:
    assert (
        probed(PROBE, "NVRM: The NVIDIA GPU 0000:3b:00.0", LOST)[-1]
        == "gpu_lost/not_responding@0000:3b:00.0"
    )


BESIDE = [
    "NVRM: The NVIDIA probe routine was not called for 1 device(s).",
    (
        "nvidia 0000:18:00.0: Direct firmware load for nvidia/525.125.06/gsp_tu10x.bin failed with"
        " error -2"
    ),
    "nvidia-uvm: Loaded the UVM driver, major device number 502.",
    (
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY]"
        " (0x00000051) returned from status @ kernel_channel.c:2874"
    ),
    (
        "mlx5_core 0000:41:00.0: mlx5_pcie_event:294:(pid 586): PCIe slot advertised sufficient"
        " power (75W)."
    ),
    "bnxt_en 0000:21:00.1 ens2f1np1: hwrm req_type 0x53 seq id 0x6fca error 0x2",
    "ice 0000:b1:00.0: PTP reset successful",
    "xhci_hcd 0000:03:00.3: Refused to change power state, currently in D3",
    "DMAR: DRHD: handling fault status reg 2",
    "arm-smmu-v3 arm-smmu-v3.0.auto: option mask 0x0",
    "LustreError: Skipped 24 previous similar messages",
    (
        "Lustre: 2449:0:(client.c:2141:ptlrpc_expire_one_request()) Skipped 24 previous similar"
        " messages"
    ),
    "ceph: mds0 reconnect start",
    "libceph: mds0 (2)192.168.1.81:6814 session reset",
    "beegfs: mount(1516568): Built without NVFS RDMA support.",
]


def test_what_stands_beside_the_faults_is_none() -> None:
    assert [line for line in BESIDE if recognise(line) is not None] == []


def test_an_unsupported_gpu_has_the_address_of_its_probe() -> None:
    lines = (
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1287)",
        "NVRM: installed in this system is not supported by the 304.131",
    )
    assert probed(*lines)[-1] == "gpu_init_failed/unsupported@0000:01:00.0"


def test_a_journal_is_called_by_its_device() -> None:
    devices = {
        "Aborting journal on device loop0-8.": "loop0",
        "Aborting journal on device nvme0n1p1-8.": "nvme0n1p1",
        "Aborting journal on device dm-0-8.": "dm-0",
        "Aborting journal on device dm-8.": "dm-8",
        "Aborting journal on device md127-8.": "md127",
        "JBD2: Detected IO errors while flushing file data on dm-2-8": "dm-2",
    }
    assert {line: seen(line).fields["device"] for line in devices} == devices


@pytest.mark.parametrize(
    ("line", "address"),
    [
        (
            (
                "DMAR: [DMA Read NO_PASID] Request device [0b:00.0] fault addr 0x1187a9000 [fault"
                " reason 0x06] PTE Read access is not set"
            ),
            "0000:0b:00.0",
        ),
        (
            (
                "arm-smmu-v3 arm-smmu-v3.5.auto: event: F_TRANSLATION client: 0001:06:00.0 sid:"
                " 0x20600 ssid: 0x0 iova: 0xff9bc000 ipa: 0x0"
            ),
            "0001:06:00.0",
        ),
    ],
)
def test_an_iommu_fault_is_the_devices(line: str, address: str) -> None:
    assert seen(line).pci == address


# --- forgeries: text of an unprivileged process in a genuine record (section 2.3), such as
# test_forged does not make of the shapes


XID = "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."
CHOSEN = [  # a process's name, and its file's
    (b"NVRM: Xid (PCI:", "x): 79, GPU has fallen off the bus."),
    (b"a\nNVRM: Xid", "y"),
    (b"kernel: ", XID),
    (b"a 0000:81:00.0:", "AER: device recovery failed"),
    (b"EXT4-fs (a): ", "Remounting filesystem read-only"),
    # As long in their escapes as they are:
    ("caf\u00e9 caf\u00e9 caf".encode(), XID),
    (b"\x01" * 15, XID),
    (b"\\" * 15, XID),
]


def test_a_crashed_process_cannot_write_an_event() -> None:
    """The report holds the process's name and its file's: both are the user's choice."""
    lines = [
        message.text.format(c=escape(name).decode(), r=file)
        for message in OF_A_PROCESS
        for name, file in CHOSEN
    ]
    assert [
        line
        for line in lines
        if (parsed := recognise(line)) is not None
        and parsed.code not in ("crash/segfault", "crash/trap", "oom/invoked")
    ] == []


def test_a_number_without_end_raises_nothing() -> None:
    """One that is longer than any that the kernel prints."""
    for line in (
        f"INFO: task a:1 blocked for more than {'9' * 5000} seconds.",
        f"watchdog: BUG: soft lockup - CPU#1 stuck for {'9' * 5000}s! [a:1]",
        f"mce: [Hardware Error]: CPU {'9' * 5000}: Machine Check: 0 Bank 7: 8c00004000010091",
    ):
        recognise(line)


# --- how shapes are indexed


def test_first_letters() -> None:
    heads = {
        r"\[Ha": [b"[Ha"],
        r"EXT[234]-fs": [b"EXT"],
        r"JBD2?: x": [b"JBD"],
        r"nd\d": [],  # a class, not a letter
        r"ab?c": [],  # the second letter may be missing
        r"abc?d": [],
        r"(?:a|b)cd": [],
        r"abc|def": [],  # another beginning altogether
        r"abc(?:d|e)": [b"abc"],
        r"abc[|]d": [b"abc"],
        r"ab": [],
        r".*abc": [],
    }
    assert {pattern: first_letters((), pattern) for pattern in heads} == heads


def test_the_index_hides_no_shape() -> None:
    """What the index finds first is among what all expressions find, each tried by itself."""
    shapes = [
        (rule, re.compile(pattern, re.S))
        for rule in catalogue().rules.values()
        for pattern in rule.match
    ]
    for code, sample in SAMPLES:
        assert code in {rule.code for rule, pattern in shapes if pattern.match(sample)}, sample
    for rule, pattern in shapes:
        for sample in rule.samples:
            if pattern.match(sample):
                assert not rule.contains or any(text in sample for text in rule.contains), sample


def test_macros_stand_for_what_drivers_print(catalog: Catalog) -> None:
    assert all(
        not set(MACROS) & {macro for macro in MACROS if macro in pattern}
        for rule in catalog.rules.values()
        for pattern in rule.match
    )
    bdf = re.compile(MACROS["{bdf}"])
    assert bdf.fullmatch("0000:3B:00.0")
    assert not bdf.fullmatch("3b:00.0")
