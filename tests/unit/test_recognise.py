"""Which record is what: the shapes of the catalogue, the records that belong together, and the
forgeries.
"""

from __future__ import annotations

import re

import pytest

from tests.unit.builders import catalogue, recognise, recogniser, seen
from vitald.catalog import Catalog
from vitald.catalog.shape import MACROS, first_letters
from vitald.collectors.kernel_log.parsed_line import ParsedLine

SAMPLES = [(rule.code, sample) for rule in catalogue().rules.values() for sample in rule.samples]


@pytest.mark.parametrize(("code", "sample"), SAMPLES)
def test_every_sample_is_claimed_by_its_own_rule(code: str, sample: str) -> None:
    assert seen(sample).code == code


def test_every_rule_that_has_shapes_has_a_sample() -> None:
    assert [
        rule.code for rule in catalogue().rules.values() if rule.match and not rule.samples
    ] == []


@pytest.mark.parametrize("profile", ["nvidia", "hyperpod"])
def test_profiles_recognise_the_same(profile: str) -> None:
    """A profile changes what is asked for, never what is seen."""
    known = recogniser(profile)
    found = [known.parse_record(sample.encode()) for _, sample in SAMPLES]
    assert [parsed.code for parsed in found if parsed is not None] == [code for code, _ in SAMPLES]


@pytest.mark.parametrize(("code", "sample"), SAMPLES)
def test_shapes_are_anchored(code: str, sample: str) -> None:
    """What stands behind other words, or in the middle of a process name, is another record."""
    if code in ("oom/invoked", "crash/segfault"):  # begin with any name
        return
    for before in ("x", " ", "a: ", "python3[4021]: ", "a\n", '"'):
        parsed = recognise(before + sample)
        expected = before == "x" and (
            code.startswith("aer/")
            or ("AMD-Vi" in sample and not sample.startswith(("AMD-Vi", "iommu")))
        )  # begins with any driver's name
        assert (parsed is not None) is expected, before


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
    assert (
        seen("pcieport 0000:80:01.0: AER: Uncorrected (Fatal) error received: 0000:81:00.0").fields[
            "blamed"
        ]
        == "0000:81:00.0"
    )


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
    assert (
        probed(PROBE, "usb 1-1: new device", INSTALLED, "pci 0000:3b:00.0: BAR 1", LOST)[-1]
        == "gpu_lost/not_responding@0000:18:00.0"
    )


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


@pytest.mark.parametrize("line", BESIDE)
def test_what_stands_beside_the_faults_is_none(line: str) -> None:
    assert recognise(line) is None


def test_an_unsupported_gpu_has_the_address_of_its_probe() -> None:
    lines = (
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1287)",
        "NVRM: installed in this system is not supported by the 304.131",
    )
    assert probed(*lines)[-1] == "gpu_init_failed/unsupported@0000:01:00.0"


@pytest.mark.parametrize(
    ("line", "device"),
    [
        ("Aborting journal on device loop0-8.", "loop0"),
        ("Aborting journal on device nvme0n1p1-8.", "nvme0n1p1"),
        ("Aborting journal on device dm-0-8.", "dm-0"),
        ("Aborting journal on device dm-8.", "dm-8"),
        ("Aborting journal on device md127-8.", "md127"),
        ("JBD2: Detected IO errors while flushing file data on dm-2-8", "dm-2"),
    ],
)
def test_a_journal_is_called_by_its_device(line: str, device: str) -> None:
    assert seen(line).fields["device"] == device


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


# --- forgeries: text of an unprivileged process in a genuine record (section 2.3)


CRASHES = {
    "segfault": (
        "{comm}[29120]: segfault at 0 ip 000055d0c0ffee12 sp 00007ffd3b1c9a40 error 6 in"
        " {file}[55d0c0ffe000+1000] likely on CPU 3 (core 3, socket 0)"
    ),
    "arm64": (
        "{comm}[29120]: unhandled exception: DABT (lower EL), ESR 0x0000000092000046, level 2"
        " translation fault in {file}[55d0c0ffe000+1000]"
    ),
}
OTHER_REPORTS = {
    "bad frame": (
        "{comm}[29120] bad frame in rt_sigreturn frame:000000003b1c9a40 ip:55d0c0ffee12"
        " sp:7ffd3b1c9a40 orax:ffffffffffffffff in {file}[55d0+1000]"
    ),
    "vsyscall": (
        "{comm}[29120] vsyscall attempted with vsyscall=none ip:ffffffffff600000 cs:33"
        " sp:7ffd3b1c9a40 ax:ffffffffff600000 si:0 di:1"
    ),
    "no memory": (
        "{comm}: page allocation failure: order:5, mode:0x40dc0(GFP_KERNEL|__GFP_COMP),"
        " nodemask=(null),cpuset=/,mems_allowed=0"
    ),
    "oom": (
        "{comm} invoked oom-killer: gfp_mask=0x1100cca(GFP_HIGHUSER_MOVABLE), order=0,"
        " oom_score_adj=0"
    ),
}
CHOSEN = [
    ("NVRM: Xid (PCI:", "x): 79, GPU has fallen off the bus."),
    ("NVRM: Xid (PCI:", "0000:65:00): 79, GPU has fallen off the bus."),
    ("a\nNVRM: Xid", "y"),
    ("NVRM: GPU at 00", "00:00.0 has fallen off the bus."),
    ("Kernel panic - ", "not syncing: Fatal machine check"),
    ("Out of memory: ", "Killed process 1 (x) total-vm:1kB"),
    ("nvidia-nvswitch", "0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 x"),
    ("a 0000:81:00.0:", "AER: device recovery failed"),
    ("nvme nvme0: ", "Removing after probe failure"),
    ("EXT4-fs (a): ", "Remounting filesystem read-only"),
    ("{1}[Hardware Er", "ror]: event severity: fatal"),
    ("INFO: task a:1 ", "blocked for more than 5 seconds"),
    ("kernel: ", "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."),
]
# Short shapes that a name of 15 bytes can fill, and ones that hold .*
CHOSEN_WELL = [
    ("MCE: Killing x", ":1 due to hardware memory corruption fault at 0"),
    ("md/raid:a: ", "failing array"),
    ("neuron:a: x", "election failed"),
    ("NVRM: x: uvm", " encountered global fatal error 0x1, requiring os reboot to recover."),
    ("XFS (a): x", "Shutting down filesystem"),
    ("EDAC MC0: UE-", "y"),
    ("EDAC MC0: 1 UE ", "y"),
    ("EDAC MC0: 1 CE ", "y"),
    ("NMI: IOCK error", "y"),
    ("JBD2: I/O error", "y"),
    ("NEURON_HW_ERR=X", "y"),
]


def fault(text: str) -> ParsedLine | None:
    """What is seen in a line, unless that only explains others."""
    parsed = recognise(text)
    return parsed if parsed is not None and not parsed.context else None


@pytest.mark.parametrize(("comm", "file"), CHOSEN + CHOSEN_WELL)
@pytest.mark.parametrize("report", CRASHES.values(), ids=CRASHES)
def test_a_crashed_process_cannot_write_an_event(report: str, comm: str, file: str) -> None:
    """The report holds the process's name and its file's: both are the user's choice."""
    assert len(comm) <= 15
    assert fault(report.format(comm=comm, file=file)) is None


@pytest.mark.parametrize("comm", ["caf\u00e9 caf\u00e9 caf", "\x01" * 15, "\\" * 15])
def test_a_name_of_odd_bytes_is_as_long_in_its_escapes(comm: str) -> None:
    escaped = "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}"
        for byte in comm.encode()
    )
    assert (
        fault(CRASHES["segfault"].format(comm=escaped, file="NVRM: Xid (PCI:0000:65:00): 79, x"))
        is None
    )


@pytest.mark.parametrize(("comm", "file"), CHOSEN)
@pytest.mark.parametrize("report", OTHER_REPORTS.values(), ids=OTHER_REPORTS)
def test_other_reports_that_begin_with_a_name(report: str, comm: str, file: str) -> None:
    parsed = recognise(report.format(comm=comm, file=file))
    assert parsed is None or parsed.code == "oom/invoked"


@pytest.mark.parametrize("report", OTHER_REPORTS.values(), ids=OTHER_REPORTS)
def test_other_reports_that_begin_with_a_well_chosen_name(report: str) -> None:
    found = {comm: recognise(report.format(comm=comm, file=file)) for comm, file in CHOSEN_WELL}
    assert {
        comm: parsed.code
        for comm, parsed in found.items()
        if parsed is not None and parsed.code != "oom/invoked"
    } == {}


# --- numbers that are longer than any kernel prints


@pytest.mark.parametrize(
    "line",
    [
        f"INFO: task a:1 blocked for more than {'9' * 5000} seconds.",
        f"watchdog: BUG: soft lockup - CPU#1 stuck for {'9' * 5000}s! [a:1]",
        f"mce: [Hardware Error]: CPU {'9' * 5000}: Machine Check: 0 Bank 7: 8c00004000010091",
    ],
    ids=["seconds", "stuck", "cpu"],
)
def test_a_number_without_end_raises_nothing(line: str) -> None:
    recognise(line)


# --- how shapes are indexed


@pytest.mark.parametrize(
    ("pattern", "heads"),
    [
        ("NVRM: x", [b"NVR"]),
        (r"I/O error", [b"I/O"]),
        (r"\[Ha", [b"[Ha"]),
        (r"EXT[234]-fs", [b"EXT"]),
        (r"md/(?:raid)", [b"md/"]),
        (r"JBD2?: x", [b"JBD"]),
        (r"nd\d", []),  # a class, not a letter
        (r"ab?c", []),  # the second letter may be missing
        (r"abc?d", []),
        (r"(?:a|b)cd", []),
        (r"abc|def", []),  # another beginning altogether
        (r"abc(?:d|e)", [b"abc"]),
        (r"abc[|]d", [b"abc"]),
        (r"ab", []),
        (r".*abc", []),
    ],
)
def test_first_letters(pattern: str, heads: list[bytes]) -> None:
    assert first_letters((), pattern) == heads


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
