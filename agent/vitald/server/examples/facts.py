"""Facts of several examples: a node, a lost GPU, its finding, incident and diagnostic run."""

from __future__ import annotations

from vitald.server import schema

BOOT_ID = "e8268f2c-a997-4a95-ac58-9f4b2d1907e4"
IDENTITY = f"kmsg:{BOOT_ID}:8123"
LINE = "NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
MEANING = "The driver cannot reach this GPU over PCIe any more, and every process on it is lost."
SEEN = "2026-11-20T13:48:08.629Z"

FLAGS: schema.Flags = {
    "rebootRequired": True,
    "rebootConfirmed": True,
    "replacementRequired": False,
    "replacementConfirmed": False,
}

DEVICE: schema.ApiDevice = {
    "index": 4,
    "serial": "1654923012345",
    "uuid": "GPU-5f0c1d2e-3a4b-4c5d-8e6f-708192a3b4c5",
    "slot": "5",
    "module": "2",
    "pci": "0000:65:00.0",
    "text": "GPU 4, serial 1654923012345, slot 5, module 2",
}

REASON = (
    "gpu/0000:65:00.0 (GPU 4, serial 1654923012345, slot 5, module 2): GPU has fallen off the bus"
    " (xid/79): reboot the node"
)

FINDING: schema.ApiFinding = {
    "id": 7,
    "incident": 3,
    "state": "open",
    "component": "gpu/0000:65:00.0",
    "device": DEVICE,
    "kind": "xid",
    "code": "xid/79",
    "title": "GPU has fallen off the bus",
    "action": "reboot_node",
    "when": "now",
    "todo": "reboot the node",
    "unusable": False,
    "accepted": None,
    "because": "",
    "class": "hardware",
    "meaning": MEANING,
    "advice": "If it returns after a cold start, the hardware is bad.",
    "since": SEEN,
    "last": SEEN,
    "count": 1,
    "raw": LINE,
    "fields": {
        "message": "GPU has fallen off the bus.",
        "number": 79,
        "pci": "0000:65:00.0",
        "pid": 1234,
        "process": "python3",
        "on_pci": True,
    },
    "clears": ["a reboot", "a named person, with a reason"],
    "confirmed": True,
    "confirmedBy": "nvml (nvml/gpu_lost)",
    "confirmedAction": "replace_node",
    "witnesses": [],
    "writtenByProcess": False,
    "simulated": False,
    "simulatedUntil": None,
    "bootId": BOOT_ID,
    "clearedAt": None,
    "clearedBy": None,
    "source": "NVIDIA Xid catalogue: REBOOT_NODE; nverror.h",
}

ROOT: schema.ApiMember = {
    "component": "gpu/0000:65:00.0",
    "code": "xid/79",
    "title": "GPU has fallen off the bus",
    "role": "root",
    "count": 1,
    "first": SEEN,
    "last": SEEN,
    "raw": LINE,
}

CONSEQUENCE: schema.ApiMember = {
    "component": "gpu/0000:65:00.0",
    "code": "xid/45",
    "title": "Channels of a killed application were cleaned up",
    "role": "consequence",
    "count": 2,
    "first": "2026-11-20T13:48:09.011Z",
    "last": "2026-11-20T13:48:09.014Z",
    "raw": "NVRM: Xid (PCI:0000:65:00): 45, pid=1234, name=python3, Ch 00000008",
}

INCIDENT: schema.ApiIncident = {
    "id": 3,
    "state": "open",
    "component": "gpu/0000:65:00.0",
    "code": "xid/79",
    "title": "GPU has fallen off the bus",
    "action": "reboot_node",
    "when": "now",
    "todo": "reboot the node",
    "line": REASON,
    "findings": [7],
    "story": "A GPU was lost from PCIe",
    "since": SEEN,
    "last": "2026-11-20T13:48:09.014Z",
    "count": 3,
    "closedAt": None,
    "simulated": False,
    "jobs": [],
    "members": [ROOT, CONSEQUENCE],
}

EVENT: schema.ApiEvent = {
    "id": 41,
    "time": SEEN,
    "source": "kernel_log",
    "kind": "xid",
    "code": "xid/79",
    "component": "gpu/0000:65:00.0",
    "trust": "kernel",
    "simulated": False,
    "raw": LINE,
    "followedBy": [],
    "fields": {
        "message": "GPU has fallen off the bus.",
        "number": 79,
        "pci": "0000:65:00.0",
        "pid": 1234,
        "process": "python3",
        "on_pci": True,
    },
    "bootId": BOOT_ID,
    "identity": IDENTITY,
}

RULE: schema.ApiRule = {
    "code": "xid/79",
    "title": "GPU has fallen off the bus",
    "mnemonic": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
    "meaning": MEANING,
    "advice": "If it returns after a cold start, the hardware is bad.",
    "class": "hardware",
    "action": "reboot_node",
    "when": "now",
    "todo": "reboot the node",
    "clears": ["a reboot"],
    "escalation": "device",
    "sharedCause": False,
    "ofPeers": False,
    "shadow": None,
    "cases": [],
    "known": True,
    "source": "NVIDIA Xid catalogue: REBOOT_NODE; nverror.h",
    "origin": "xid.toml",
}

GOING: schema.DiagnosticGoing = {
    "id": "20261120T134808-3-dcgm-2",
    "check": "dcgm",
    "level": 2,
    "gpus": [],
    "by": "root (uid 0), pid 4711",
    "reason": "before the big run, ticket 4711",
    "stage": "running",
    "askedAt": SEEN,
    "began": "2026-11-20T13:50:11.004Z",
    "elapsed": 93.2,
    "expected": 480.0,
    "waitsFor": "",
    "test": "memory",
}

RUN: schema.DiagnosticRun = {
    "id": "20261120T114808-2-dcgm-1",
    "check": "dcgm",
    "level": 1,
    "gpus": [],
    "by": "schedule",
    "reason": "",
    "began": "2026-11-20T11:48:08.629Z",
    "ended": "2026-11-20T11:48:15.117Z",
    "seconds": 6.488,
    "outcome": "fail",
    "why": "GPU 3: a row remap failed (dcgm/84)",
    "action": "replace",
    "rebootRequired": False,
    "replacementRequired": True,
    "exitCode": 226,
    "culprits": [3],
    "preempted": "",
    "dcgmVersion": "3.3.7",
    "driverVersion": "535.183.01",
    "deviceIds": ["2330", "2330"],
}

JOB: schema.ApiJob = {
    "job": "1234",
    "user": "alice",
    "uid": 1000,
    "state": "died",
    "began": "2026-11-20T11:02:51.020Z",
    "ended": "2026-11-20T13:48:20.634Z",
    "exitCode": 1,
    "signal": 0,
    "reason": "",
}
