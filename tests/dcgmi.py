"""
A stand-in for `dcgmi`: a real program in a folder, which answers as a scenario beside it says.

    with Dcgmi(tmp_path / "bin") as dcgmi:                            # 8 GPUs, 4.5.2, all well
        dcgmi.answer("diag -r 2", diag(level=2, faults=[Fault(57, gpu=3, test="memory")]))
        dcgmi.answer("diag -r 1", diag(delay_s=30.0))                 # takes half a minute; SIGTERM
        gives the error object and 203 dcgmi.answer("health -c", Answer(hang=True,
        ignores_term=True)) ...                                                           # run
        str(dcgmi.path), or put str(dcgmi.folder) on PATH assert dcgmi.runs()[0].level == 2

Without an answer of their own, `diag`, `discovery -l`, `health`, `--version` and `-v` say that all
is well. An answer may be changed at any time, and counts from the next call. Leaving the `with`
ends whatever the stand-in left running.

Documents (`document`, `refusal`, `discovery`, ...) are also of use without a program.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from tests import dcgmi_program
from tests.dcgmi_program import printed

VERSION = "4.5.2"

_DEPLOYMENT = (
    *(
        "Denylist",
        "NVML Library",
        "CUDA Main Library",
        "Permissions and OS Blocks",
        "Persistence Mode",
        "Environment Variables",
    ),
    *("Page Retirement/Row Remap", "Graphics Processes", "Inforom"),
)
# Test, its name in 3.x, category in 4.x and in 3.x, and the first level that has it; in the order
# of 4.x.
_TESTS = (
    ("memory", "GPU Memory", "Hardware", "Hardware", 2),
    ("diagnostic", "Diagnostic", "Hardware", "Hardware", 3),
    ("nvbandwidth", "", "Hardware", "", 3),
    ("pulse_test", "Pulse Test", "Hardware", "Hardware", 4),
    ("pcie", "PCIe", "Integration", "Integration", 2),
    ("memory_bandwidth", "Memory Bandwidth", "Stress", "Stress", 3),
    ("targeted_stress", "Targeted Stress", "Stress", "Stress", 3),
    ("targeted_power", "Targeted Power", "Stress", "Stress", 3),
    ("memtest", "Memtest", "Stress", "Stress", 4),
)
_ORDER_3 = ("Integration", "Hardware", "Stress")  # after Deployment
# Severity, category, text, and the Deployment check that says it, in 3.x and, as a prefix, in 4.x.
_ERRORS = {
    4: (
        2,
        10,
        (
            "Detected {n} double-bit volatile ECC error(s) on GPU {gpu}. Drain the GPU and reset it"
            " or reboot the node."
        ),
        "",
    ),
    6: (
        6,
        10,
        "A pending retired page has been detected on GPU {gpu}. Drain the GPU and reset it.",
        "Page Retirement/Row Remap",
    ),
    23: (5, 3, "Found driver on the denylist: nouveau. Uninstall it.", "Denylist"),
    25: (6, 8, "Graphics processes found running on GPU {gpu}.", "Graphics Processes"),
    29: (
        5,
        8,
        "Persistence mode for GPU {gpu} is disabled. Enable persistence mode as root.",
        "Persistence Mode",
    ),
    30: (4, 13, "Detected low PCIe bandwidth on GPU {gpu}.", ""),
    40: (1, 9, "Temperature of GPU {gpu} rose above the limit.", ""),
    44: (3, 16, "GPU {gpu} is detached.", ""),
    56: (4, 10, "Less than 75 % of the memory of GPU {gpu} could be allocated.", ""),
    57: (
        2,
        10,
        (
            "CUDA APIs have indicated that a double-bit ECC error has occured on GPU {gpu}. Run a"
            " field diagnostic on the GPU."
        ),
        "",
    ),
    58: (
        2,
        10,
        (
            "Memory of GPU {gpu} did not hold what was written to it. Run a field diagnostic on the"
            " GPU."
        ),
        "",
    ),
    80: (
        2,
        10,
        (
            "GPU {gpu} had uncorrectable memory errors and row remapping failed. Run a field"
            " diagnostic."
        ),
        "Page Retirement/Row Remap",
    ),
    84: (
        6,
        10,
        "GPU {gpu} had uncorrectable memory errors and 1 rows need to be remapped. Reset it.",
        "Page Retirement/Row Remap",
    ),
    112: (5, 8, "Fabric manager has not completed its training of GPU {gpu}.", "Fabric Manager"),
    126: (
        2,
        15,
        "GPU {gpu} needs a reboot of the node. Recovery action: 2 (NODE_REBOOT).",
        "GPU Recovery State",
    ),
}
_SUMMARISES = (4, 5)  # from here on a summary repeats all findings

# Runs without results, by exit code: the number in the text, and the reason.
_REFUSALS = {
    190: (-66, "The diagnostic was stopped"),
    203: (-53, "The DCGM diagnostic was killed by a signal"),
    217: (
        -39,
        "A diag instance is already running, cannot run a new diag until the current one finishes",
    ),
    222: (
        -34,
        "The requested operation could not be completed because the affected resource is in use",
    ),
    235: (-21, "Host engine connection invalid/disconnected"),
    245: (-11, "Timeout"),
}
_REFUSED = {  # the same, where the text has another form
    202: "Error: Diagnostic could not be run while DCGM is paused.",
    226: (
        "Error: GPU 0's MIG configuration is incompatible with the diagnostic because it prevents"
        " access to the entire GPU."
    ),
    233: (
        "Error: Diagnostic can only be performed on a homogeneous group of GPUs. Their models"
        " differ."
    ),
}
_UNCONNECTED = "Error: unable to establish a connection to the specified host: localhost\n"
# Exit 235
NO_ENGINE = (
    f"{_UNCONNECTED}Error: Unable to connect to host engine. Host engine connection"
    " invalid/disconnected.\n"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One warning of a document. Severity, category and text of well-known ids need not be given.

    `test` is the name in 4.x: `software` for a check of level 1. `gpu=None`: it belongs to no GPU.
    """

    id: int
    gpu: int | None = 0
    test: str = "software"
    text: str = ""
    severity: int | None = None
    category: int | None = None
    check: str = ""  # of the Deployment checks, where the id does not say which: `Inforom`

    @property
    def known(self) -> tuple[int, int, str, str]:
        """Severity, category, text and check."""
        severity, category, text, check = _ERRORS.get(
            self.id, (2, 15, "Something of GPU {gpu} is wrong.", "")
        )
        said = self.text or text.format(gpu=self.gpu, n=1)
        return (
            severity if self.severity is None else self.severity,
            category if self.category is None else self.category,
            said,
            self.check or check or "Inforom",
        )


def document(
    version: str = VERSION,
    level: int = 1,
    gpus: int | Sequence[int] = 8,
    faults: Sequence[Fault] = (),
    skips: Mapping[str, str] | Sequence[str] = (),
    detached: Sequence[int] = (),
    device: str = "2330",
    driver: str = "",
) -> str:
    """The JSON that `dcgmi diag -r <level> --json` prints, of 3.3.5 and later or of 4.x. All pass
    but `faults`.

    `gpus`: how many, or their indexes. `skips`: tests that skip on every GPU, by their names in
    4.x, and with the reason where one is given. `detached`: GPUs that the driver has lost (4.5 and
    later).
    """
    numbers = tuple(range(gpus)) if isinstance(gpus, int) else tuple(gpus)
    reasons = dict(skips) if isinstance(skips, Mapping) else dict.fromkeys(skips, "")
    build = _document_3 if version.startswith("3.") else _document_4
    driver = driver or ("535.183.01" if version.startswith("3.") else "580.95.05")
    return printed(build(version, level, numbers, faults, reasons, detached, device, driver)) + "\n"


def refusal(code: int, version: str = VERSION, text: str = "") -> str:
    """The error object of a run without results, by dcgmi's exit code: 202, 203, 217, 222, 226,
    233, 235, 245; `text` for others.
    """
    old = version.startswith("3.")
    if not text and code in _REFUSED:
        text = _REFUSED[code]
    elif not text:
        number, reason = _REFUSALS[code]
        what = "group 2147483647" if old else "entities *,cpu:*"
        text = f"Error: Unable to complete diagnostic for {what}. Return: ({number}) " + (
            f"{reason}." if old else f": {reason}\n"
        )
    root = "DCGM GPU Diagnostic" if old else "DCGM Diagnostic"
    return printed({root: {"runtime_error": text, "version": version}}) + "\n\n"


def exit_code(faults: Sequence[Fault]) -> int:
    """Of a run with these faults: 205 where one of them isolates the GPU, else 226."""
    return 0 if not faults else 205 if any(fault.known[0] == 2 for fault in faults) else 226


def health(troubles: Mapping[int, Mapping[str, tuple[str, str]]] | None = None) -> str:
    """What `dcgmi health -c -j` prints. `troubles`: GPU -> system -> (`Warning` or `Failure`,
    text):

    health({3: {"NVLINK system": ("Failure", "GPU 3's NvLink link 4 is currently down")}})
    """
    gpus, worst = {}, "Healthy"
    for gpu, systems in (troubles or {}).items():
        values = [value for value, _ in systems.values()]
        said = {
            name: {"value": value, "overflow": _pieces(text)}
            for name, (value, text) in systems.items()
        }
        gpus[str(gpu)] = {
            "children": {"Errors": {"children": said}},
            "value": max(values, key=_RANKS.index),
        }
        worst = max(worst, *values, key=_RANKS.index)
    body = {"Overall Health": {"value": worst}, **({"GPU": {"children": gpus}} if gpus else {})}
    return printed({"body": body, "header": ["Health Monitor Report"]}) + "\n"


def discovery(
    gpus: int = 8,
    version: str = VERSION,
    addresses: Sequence[str] = (),
    name: str = "NVIDIA H100 80GB HBM3",
) -> str:
    """What `dcgmi discovery -l` prints. `addresses`: PCI addresses of the GPUs, `00000000:53:00.0`;
    invented where not given.
    """
    old = version.startswith("3.")
    bar = f"+--------+{'-' * 70}+"
    lines = [
        f"{gpus} GPU{'' if gpus == 1 else 's'} found{'' if old else ' (Active)'}.",
        bar,
        _row("GPU ID", "Device Information"),
        bar,
    ]
    for gpu in range(gpus):
        address = addresses[gpu] if gpu < len(addresses) else f"00000000:{0x10 + 8 * gpu:02X}:00.0"
        lines += [_row(str(gpu), f"Name: {name}"), _row("", f"PCI Bus ID: {address}")]
        lines += [_row("", f"Device UUID: GPU-00000000-1111-2222-3333-{gpu:012d}"), bar]
    for what, head in (("NvSwitches", "Switch ID"), *(() if old else (("ConnectX", "ConnectX"),))):
        rule = f"+{'-' * (len(head) + 2)}+"
        lines += [f"0 {what} found.", rule, f"| {head} |", rule, rule]
    if not old:
        lines += ["0 CPUs found.", bar, _row("CPU ID", "Device Information"), bar, bar]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the stand-in does when it is called. In this order: leave, delay, flood, stderr, stdout,
    hang, signal, exit.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    delay_s: float = 0.0  # before anything is printed
    slow_s: float = 0.0  # stdout is printed piece by piece, over so long
    flood: int = 0  # so many bytes of rubbish on stdout first
    hang: bool = False  # never ends by itself
    signal: int = 0  # ends itself by this one
    ignores_term: bool = False  # also SIGINT, SIGHUP, SIGQUIT
    stops_s: float | None = (
        None  # on SIGTERM: after so long the error object and 203; None: dies of it, as any program
    )
    alone: bool = False  # refused with 222 (up to 4.2: 217) while another such run goes on
    # Starts a process named `nvvs` that goes on after it: "child", "deaf child" (ignores SIGTERM),
    # "session" (deaf, in a session of its own, with stdout open), "daemon" (the same, nobody's
    # child), "engine" (as nv-hostengine's: without this program's environment and output; ended
    # when the run ends or is stopped, but not when this program is killed, and as `alone` holds the
    # lock on).
    leaves: str = ""
    leaves_s: float = 300.0  # how long that one goes on
    deaf_engine: bool = False  # it ignores SIGTERM


def diag(
    version: str = VERSION,
    level: int = 1,
    gpus: int | Sequence[int] = 8,
    faults: Sequence[Fault] = (),
    *,
    skips: Mapping[str, str] | Sequence[str] = (),
    detached: Sequence[int] = (),
    delay_s: float = 0.0,
    stops_s: float | None = 0.0,
    leaves: str = "",
) -> Answer:
    """A run as the tool does it: its document and the exit code that goes with it, alone, and
    minding SIGTERM.
    """
    return Answer(
        stdout=document(version, level, gpus, faults, skips, detached),
        exit_code=exit_code(faults),
        delay_s=delay_s,
        stops_s=stops_s,
        alone=True,
        leaves=leaves,
    )


def refused(code: int, version: str = VERSION, text: str = "") -> Answer:
    """A run without results."""
    return Answer(stdout=refusal(code, version, text), exit_code=code)


@dataclass(frozen=True, slots=True)
class Call:
    """One start of the stand-in."""

    argv: tuple[str, ...]  # without the program
    environment: Mapping[str, str]
    at: float
    pid: int
    group: int
    session: int
    cwd: str
    stdin: str
    fds: Mapping[int, str]  # what it found open
    signals: tuple[int, ...] = ()  # that it was sent and noticed
    exit_code: int | None = None  # None while it runs, or where something killed it

    @property
    def level(self) -> int:
        """Of `diag -r N`; 0 for other calls."""
        words = dcgmi_program.words_of(list(self.argv))
        return (
            int(words[words.index("-r") + 1]) if words[:1] == ["diag"] and "-r" in words[:-1] else 0
        )


@dataclass(slots=True)
class Dcgmi:
    """The program in its folder. `python` must be one that the user who runs it may run."""

    folder: Path
    version: str = VERSION
    gpus: int = 8
    python: str = ""
    _answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    _ids: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.install()
        for name in ("calls.jsonl", "turns.json", "lock", "left"):
            (self.folder / name).touch()
            (self.folder / name).chmod(0o666)  # whoever runs it writes there
        for level in (1, 2, 3, 4):
            self._set(f"diag -r {level}", [diag(self.version, level, self.gpus)])
        self._set("discovery -l", [Answer(stdout=discovery(self.gpus, self.version))])
        self._set("health -s", [Answer(stdout="Health monitor systems set successfully.\n")])
        self._set("health -c", [Answer(stdout=health())])
        self._set("--version", [Answer(stdout=f"\ndcgmi  version: {self.version}\n\n")])
        self._set("-v", [Answer(stdout=_build_info(self.version))])
        self._write()

    def __enter__(self) -> Dcgmi:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def path(self) -> Path:
        return self.folder / "dcgmi"

    @property
    def search_path(self) -> str:
        """A PATH with its folder first."""
        return f"{self.folder}:{os.environ.get('PATH', '/usr/bin:/bin')}"

    def install(self) -> None:
        """Put the program there, as at first."""
        python = (
            self.python
            or shutil.which("python3", path="/usr/bin:/usr/local/bin")
            or os.path.realpath(sys.executable)
        )
        source = Path(dcgmi_program.__file__).read_text()
        for name in ("dcgmi", "nvvs"):
            new = self.folder / f".{name}.new"
            new.write_text(f"#!{python} -ISB\n{source}")
            new.chmod(0o755)
            new.replace(self.folder / name)

    def answer(self, call: str, *answers: Answer) -> None:
        """From now on: to a call with these words, in this order, the first of which is the
        subcommand (`diag`, `diag -r 2`, `health -c`). Of several the one with the most words
        counts. Several answers are given one after the other; the last one stays.
        """
        self._set(call, list(answers))
        self._write()

    def diag(self, *answers: Answer) -> None:
        """To any `diag`, whatever its level."""
        for key in [key for key in self._answers if key.startswith("diag")]:
            del self._answers[key]
        self.answer("diag", *answers)

    def no_engine(self) -> None:
        """nv-hostengine is down: `health` and `discovery` say so, while `diag` starts an engine of
        its own.
        """
        for call in ("health", "health -s", "health -c", "discovery", "discovery -l"):
            self._set(call, [Answer(stdout=NO_ENGINE, exit_code=235)])
        self._write()

    def calls(self) -> tuple[Call, ...]:
        """All so far, the oldest first."""
        found: list[dict[str, Any]] = []
        last: dict[int, dict[str, Any]] = {}  # by process id
        written = (self.folder / "calls.jsonl").read_text()
        for line in written[: written.rfind("\n") + 1].splitlines():  # the last may be under way
            said = json.loads(line)
            if "argv" in said:
                last[said["pid"]] = said | {"signals": []}
                found.append(last[said["pid"]])
            elif "signal" in said:
                last[said["pid"]]["signals"].append(said["signal"])
            else:
                last[said["pid"]]["exit_code"] = said["exit_code"]
        return tuple(
            Call(
                argv=tuple(said["argv"][1:]),
                environment=said["environment"],
                at=said["at"],
                pid=said["pid"],
                group=said["group"],
                session=said["session"],
                cwd=said["cwd"],
                stdin=said["stdin"],
                fds={int(fd): target for fd, target in said["fds"].items()},
                signals=tuple(said["signals"]),
                exit_code=said.get("exit_code"),
            )
            for said in found
        )

    def runs(self) -> tuple[Call, ...]:
        """The calls of `diag`."""
        return tuple(call for call in self.calls() if call.argv[:1] == ("diag",))

    def forget(self) -> None:
        """The calls so far."""
        (self.folder / "calls.jsonl").write_text("")

    def alive(self) -> tuple[int, ...]:
        """Process ids of what it started or was, and that still run. Zombies do not."""
        return tuple(pid for pid in sorted(self._pids()) if _lives(pid, self.folder))

    def end(self) -> None:
        """Kill all of that."""
        while pids := self.alive():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def _pids(self) -> set[int]:
        return {call.pid for call in self.calls()} | {
            int(line) for line in (self.folder / "left").read_text().split()
        }

    def _set(self, call: str, answers: Sequence[Answer]) -> None:
        said = [
            {key: value for key, value in asdict(answer).items() if value is not None}
            for answer in answers
        ]
        self._answers[call] = {"id": str(next(self._ids)), "answers": said}

    def _write(self) -> None:
        busy = 217 if self.version < "4.3" else 222
        scenario = {
            "answers": self._answers,
            "busy": {"stdout": refusal(busy, self.version), "exit_code": busy},
            "stopped": {"stdout": refusal(203, self.version), "exit_code": 203},
        }
        new = self.folder / ".scenario.new"
        new.write_text(json.dumps(scenario))
        new.chmod(0o644)
        new.replace(self.folder / "scenario.json")


_RANKS = ("Healthy", "Warning", "Failure")


_KERNEL_THREAD = 0x00200000  # PF_KTHREAD in /proc/PID/stat


def _lives(pid: int, folder: Path) -> bool:
    """Whether this is a process of the stand-in's, and no later one with its number: the script is
    among its words. A process that is ending has no words any more and is not reapable yet: it
    lives. A kernel thread never has any: it has the number that a stand-in had in its container.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    if state in "ZX" or int(fields[5]) & _KERNEL_THREAD:
        return False
    return not words or os.fsencode(folder) in words


def _pieces(text: str, width: int = 44) -> list[str]:
    """Cut at spaces, as for a table."""
    pieces = [""]
    for word in text.split():
        if pieces[-1] and len(pieces[-1]) + 1 + len(word) > width:
            pieces.append(word)
        else:
            pieces[-1] = f"{pieces[-1]} {word}".strip()
    return pieces


def _row(left: str, right: str) -> str:
    return f"| {left:<6} | {right:<68} |"


def _build_info(version: str) -> str:
    info = (
        f"Version : {version}\nBuild ID : 1\nBuild Date : 2025-01-01\nBuild Type : Release\nCPU"
        " Arch : x86_64\n"
    )
    return (
        ("" if version.startswith("3.") else "\nLocal build info:\n")
        + info
        + "\nHostengine build info:\n"
        + info
        + "\n"
    )


def _warning(fault: Fault, key: str = "warning", prefix: str = "") -> dict[str, object]:
    severity, category, text, _ = fault.known
    return {
        "error_category": category,
        "error_id": fault.id,
        "error_severity": severity,
        key: prefix + text,
    }


def _document_4(
    version: str,
    level: int,
    gpus: Sequence[int],
    faults: Sequence[Fault],
    skips: Mapping[str, str],
    detached: Sequence[int],
    device: str,
    driver: str,
) -> dict[str, object]:
    repeats = tuple(map(int, version.split(".")[:2])) >= _SUMMARISES
    named = {fault.test for fault in faults}
    names = [
        ("software", "Deployment"),
        *(
            (name, category)
            for name, _, category, _, first in _TESTS
            if level >= first or name in named
        ),
    ]
    categories: dict[str, list[object]] = {}
    for number, (name, category) in enumerate(names):
        categories.setdefault(category, []).append(
            _test_4(name, gpus, faults, skips, detached, repeats, number == 0)
        )
    entities = [
        {"device_id": device, "entity_id": gpu, "serial_num": f"SIM{gpu:010d}"} for gpu in gpus
    ]
    return {
        "DCGM Diagnostic": {
            "test_categories": [
                {"category": name, "tests": tests} for name, tests in categories.items()
            ]
        },
        "entity_groups": [{"entities": entities, "entity_group": "GPU", "entity_group_id": 1}],
        "metadata": {"Driver Version Detected": driver, "version": version},
    }


def _test_4(
    name: str,
    gpus: Sequence[int],
    faults: Sequence[Fault],
    skips: Mapping[str, str],
    detached: Sequence[int],
    repeats: bool,
    first: bool,
) -> dict[str, object]:
    mine = [fault for fault in faults if fault.test == name]
    results, said = [], []
    for gpu in gpus:
        if gpu in detached:
            continue
        warnings = [
            _warning(fault, prefix=f"{fault.known[3]}: " if first else "")
            for fault in mine
            if fault.gpu == gpu
        ]
        bad = bool(mine) if first else bool(warnings)  # a check of level 1 stamps its status on all
        result: dict[str, object] = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu}
        result["status"] = "Skip" if name in skips else "Fail" if bad else "Pass"
        if warnings:
            result["warnings"] = warnings
        if skips.get(name):
            result["info"] = [skips[name]]
        results.append(result)
        said += warnings
    summary: dict[str, object] = {"status": "Skip" if name in skips else "Fail" if mine else "Pass"}
    loose = [_warning(fault) for fault in mine if fault.gpu is None]
    loose += [_warning(Fault(44, gpu)) for gpu in detached if first]
    if loose or (said and repeats):
        summary["warnings"] = [*(said if repeats else []), *loose]
    return {"name": name, "results": results, "test_summary": summary}


def _document_3(
    version: str,
    level: int,
    gpus: Sequence[int],
    faults: Sequence[Fault],
    skips: Mapping[str, str],
    detached: Sequence[int],
    device: str,
    driver: str,
) -> dict[str, object]:
    named = {fault.test for fault in faults}
    deployment = []
    for check in _DEPLOYMENT:
        said = [
            _warning(fault, "warnings")
            for fault in faults
            if fault.test == "software" and fault.known[3] == check
        ]
        deployment.append(
            {
                "name": check,
                "results": [
                    (
                        {"gpu_id": 0, "status": "Fail", "warnings": said}
                        if said
                        else {"status": "Pass"}
                    )
                ],
            }
        )
    categories = [{"category": "Deployment", "tests": deployment}]
    there = [gpu for gpu in gpus if gpu not in detached]
    for category in _ORDER_3:
        tests = [
            {"name": old, "results": [_result_3(gpu, name, faults, skips) for gpu in there]}
            for name, old, _, its, first in _TESTS
            if its == category and (level >= first or name in named)
        ]
        if tests:
            categories.append({"category": category, "tests": tests})
    return {
        "DCGM GPU Diagnostic": {"test_categories": categories},
        "Driver Version Detected": driver,
        "GPU Device IDs": [device for _ in there],
        "GPU Device Serials": {str(gpu): f"16530230001{gpu:02d}" for gpu in there},
        "version": version,
    }


def _result_3(
    gpu: int, test: str, faults: Sequence[Fault], skips: Mapping[str, str]
) -> dict[str, object]:
    said = [
        _warning(fault, prefix=f"GPU {gpu} ")
        for fault in faults
        if fault.test == test and fault.gpu == gpu
    ]
    result: dict[str, object] = {
        "gpu_id": str(gpu),
        "status": "Skip" if test in skips else "Fail" if said else "Pass",
    }
    if said:
        result["warnings"] = said
    if skips.get(test):
        result["info"] = f"GPU {gpu} {skips[test]}"
    return result
