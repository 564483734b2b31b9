"""What openapi.json shows as examples: one node, one lost GPU, and what is told of it."""

from __future__ import annotations

from vitald.server import schema

BOOT_ID = "e8268f2c-a997-4a95-ac58-9f4b2d1907e4"
IDENTITY = f"kmsg:{BOOT_ID}:8123"
LINE = "NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
_MEANING = "The driver cannot reach this GPU over PCIe any more, and every process on it is lost."
SEEN = "2026-11-20T13:48:08.629Z"

_FLAGS: schema.Flags = {
    "rebootRequired": True,
    "rebootConfirmed": True,
    "replacementRequired": False,
    "replacementConfirmed": False,
}

_FINDING: schema.Finding = {
    "id": 7,
    "incident": 3,
    "state": "open",
    "component": "gpu/0000:65:00.0",
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
    "meaning": _MEANING,
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
    "witnesses": [],
    "writtenByProcess": False,
    "simulated": False,
    "simulatedUntil": None,
    "bootId": BOOT_ID,
    "clearedAt": None,
    "clearedBy": None,
    "source": "NVIDIA Xid catalogue: REBOOT_NODE; nverror.h",
}

_ROOT: schema.Member = {
    "component": "gpu/0000:65:00.0",
    "code": "xid/79",
    "title": "GPU has fallen off the bus",
    "role": "root",
    "count": 1,
    "first": SEEN,
    "last": SEEN,
    "raw": LINE,
}

_CONSEQUENCE: schema.Member = {
    "component": "gpu/0000:65:00.0",
    "code": "xid/45",
    "title": "Channels of a killed application were cleaned up",
    "role": "consequence",
    "count": 2,
    "first": "2026-11-20T13:48:09.011Z",
    "last": "2026-11-20T13:48:09.014Z",
    "raw": "NVRM: Xid (PCI:0000:65:00): 45, pid=1234, name=python3, Ch 00000008",
}

_INCIDENT: schema.Incident = {
    "id": 3,
    "state": "open",
    "component": "gpu/0000:65:00.0",
    "code": "xid/79",
    "title": "GPU has fallen off the bus",
    "action": "reboot_node",
    "when": "now",
    "todo": "reboot the node",
    "line": "gpu/0000:65:00.0: GPU has fallen off the bus (xid/79): reboot the node",
    "findings": [7],
    "story": "A GPU was lost from PCIe",
    "since": SEEN,
    "last": "2026-11-20T13:48:09.014Z",
    "count": 3,
    "closedAt": None,
    "simulated": False,
    "jobs": [],
    "members": [_ROOT, _CONSEQUENCE],
}

_EVENT: schema.Event = {
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

RULE: schema.Rule = {
    "code": "xid/79",
    "title": "GPU has fallen off the bus",
    "mnemonic": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
    "meaning": _MEANING,
    "advice": "If it returns after a cold start, the hardware is bad.",
    "class": "hardware",
    "action": "reboot_node",
    "when": "now",
    "todo": "reboot the node",
    "clears": ["a reboot"],
    "escalation": "node",
    "shadow": None,
    "cases": [],
    "known": True,
    "source": "NVIDIA Xid catalogue: REBOOT_NODE; nverror.h",
    "origin": "xid.toml",
}

_GOING: schema.DiagnosticGoing = {
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

_RUN: schema.DiagnosticRun = {
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

_JOB: schema.Job = {
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

HEALTHZ: schema.Health = {"ok": True, "version": "0.1.0"}

STATUS: schema.NodeStatus = {
    "status": "unhealthy",
    "rebootRequired": True,
    "rebootConfirmed": True,
    "replacementRequired": False,
    "replacementConfirmed": False,
    "action": "reboot_node",
    "simulated": False,
    "reasons": ["gpu/0000:65:00.0: GPU has fallen off the bus (xid/79): reboot the node"],
    "components": [
        {
            "name": "node",
            "kind": "node",
            "id": "",
            "status": "unhealthy",
            "action": "reboot_node",
            "findings": 0,
            "sources": [],
            "unseen": [],
            "attributes": {},
        },
        {
            "name": "gpu/0000:65:00.0",
            "kind": "gpu",
            "id": "0000:65:00.0",
            "status": "unhealthy",
            "action": "reboot_node",
            "findings": 1,
            "sources": ["nvml", "pci"],
            "unseen": [],
            "attributes": {
                "pci": "0000:65:00.0",
                "vendor": "10de",
                "device": "2330",
                "driver": "nvidia",
            },
        },
    ],
    "sources": [
        {
            "name": "kernel_log",
            "state": "ok",
            "lastSeen": "2026-11-20T13:48:08.634Z",
            "deadline": "2026-11-20T13:48:38.634Z",
            "detail": "",
        }
    ],
    "findings": [_FINDING],
    "openFindings": 1,
    "incidents": [_INCIDENT],
    "trials": [],
    "suspects": [
        {
            "device": "gpu/0000:65:00.0",
            "component": "gpu/0000:65:00.0",
            "score": 1.0,
            "suspect": False,
            "parts": [{"kind": "fault", "count": 1, "points": 1.0}],
        }
    ],
    "ledger": {
        "ok": True,
        "error": "",
        "unsavedEvents": 0,
        "droppedEvents": 0,
        "sizeBytes": 106936,
    },
    "kernelLog": {"recordsRead": 8123, "recordsLost": 0, "untrusted": 0},
    "profile": "nvidia",
    "host": "gpu-node-17",
    "bootId": BOOT_ID,
    "version": "0.1.0",
    "pid": 812,
    "startedAt": "2026-11-20T08:00:02.101Z",
    "time": "2026-11-20T13:48:09.069Z",
}

COMPONENTS: schema.Components = {
    "components": [
        {
            "name": "node",
            "kind": "node",
            "id": "",
            "identity": None,
            "status": "unknown",
            "action": "none",
            "findings": 0,
            "sources": [],
            "unseen": [],
            "attributes": {},
            "sights": [],
        },
        {
            "name": "neuron/0000:10:1c.0",
            "kind": "neuron",
            "id": "0000:10:1c.0",
            "identity": "7a1c33d20f4be961",
            "status": "unknown",
            "action": "none",
            "findings": 0,
            "sources": ["neuron"],
            "unseen": ["neuron: no look within the deadline"],
            "attributes": {
                "pci": "0000:10:1c.0",
                "vendor": "1d0f",
                "device": "7164",
                "driver": "neuron-driver",
            },
            "sights": [
                {
                    "name": "neuron",
                    "looked": "2026-11-20T13:46:31.120Z",
                    "unseen": "no look within the deadline",
                    "observable": 0,
                    "asked": 3,
                    "simulated": False,
                    "readings": {"hbm_ecc_uncorrected": 0, "sram_ecc_uncorrected": 0},
                    "notObservable": {"temperature_celsius": "the driver shows none"},
                }
            ],
        },
    ],
    "coverage": [
        {
            "source": "neuron",
            "kind": "neuron",
            "components": 1,
            "observable": 0,
            "asked": 3,
            "gaps": [
                {
                    "reason": "the driver shows none",
                    "readings": ["temperature_celsius"],
                    "components": ["neuron/0000:10:1c.0"],
                }
            ],
        }
    ],
    "sources": [
        {
            "name": "neuron",
            "state": "stale",
            "lastSeen": "2026-11-20T13:46:31.120Z",
            "deadline": "2026-11-20T13:47:46.120Z",
            "detail": "",
        }
    ],
    "off": ["nvml"],
}

EXPECT: schema.Expected = {
    "instanceType": "trn2.48xlarge",
    "counts": [
        {
            "kind": "neuron",
            "title": "Neuron devices",
            "here": 15,
            "notObservable": "",
            "expected": 16,
            "confirmed": True,
            "because": "instance type trn2.48xlarge",
        }
    ],
    "versions": [{"name": "neuron_driver", "here": "2.30.2.0", "expected": []}],
    "healthyBoots": 3,
    "thisBootCounted": False,
}

CONFIRM_REQUEST: schema.ConfirmRequest = {"reason": "card 15 is out until Monday, ticket 4711"}

CONFIRM: schema.Confirmed = {
    "confirmed": {"neuron": 15, "efa": 0, "nics": 0, "nvme": 0},
    "instanceType": "trn2.48xlarge",
    "counts": [
        {
            "kind": "neuron",
            "title": "Neuron devices",
            "here": 15,
            "notObservable": "",
            "expected": 15,
            "confirmed": True,
            "because": "confirmed by root (uid 0) on 2026-11-21: "
            "card 15 is out until Monday, ticket 4711",
        }
    ],
    "versions": [{"name": "neuron_driver", "here": "2.30.2.0", "expected": []}],
    "healthyBoots": 3,
    "thisBootCounted": True,
}

GPUS: schema.Gpus = {
    "gpus": [
        {
            "component": "gpu/0000:65:00.0",
            "pci": "0000:65:00.0",
            "status": "healthy",
            "findings": [],
            "looked": "2026-11-20T13:48:08.634Z",
            "fresh": True,
            "simulated": False,
            "identity": {
                "name": "NVIDIA H100 80GB HBM3",
                "uuid": "GPU-5f0c1d2e-3a4b-4c5d-8e6f-708192a3b4c5",
                "serial": "1654923012345",
                "part_number": "692-2G520-0200-000",
                "vbios": "96.00.74.00.01",
                "inforom": "G520.0200.00.05",
                "module_id": 2,
                "minor": 4,
                "board_id": 25856,
            },
            "slot": "5",
            "readings": {
                "ecc_uncorrected": 0,
                "fabric_cluster": "5f0c1d2e3a4b4c5d8e6f708192a3b4c5",
                "lost": 0,
                "nvlink_active": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
                "power_watts": 412.6,
                "recovery": 0,
                "temperature_celsius": 61,
            },
            "notObservable": {
                "slowdown_celsius": "not supported",
                "retired_pages": "not supported",
            },
        }
    ],
    "source": {
        "name": "nvml",
        "state": "ok",
        "lastSeen": "2026-11-20T13:48:08.634Z",
        "deadline": "2026-11-20T13:48:43.634Z",
        "detail": "",
    },
}

RELEASE_REQUEST: schema.ReleaseRequest = {
    "reason": "reset after xid/48, ticket 4711",
    "seconds": 600,
}

RELEASE: schema.Released = {
    "gpus": [],
    "seconds": 600.0,
    "until": "2026-11-20T13:58:08.562Z",
    "holders": [{"pid": 4711, "process": "python3"}],
    "notLookedAt": 0,
    "stuck": [],
    "free": False,
}

END_RELEASE_REQUEST: schema.EndReleaseRequest = {}

END_RELEASE: schema.ReleaseEnded = {"ended": 1}

DIAGNOSTICS: schema.Diagnostics = {
    "checks": [
        {
            "name": "dcgm",
            "title": "DCGM diagnostic",
            "levels": [1, 2],
            "missing": "",
            "every": {"1": 3600.0, "2": 86400.0},
            "expected": {"1": 20.0, "2": 480.0},
            "needsIdle": {"1": False, "2": True},
        }
    ],
    "going": [_GOING],
    "last": [_RUN],
    "due": [{"check": "dcgm", "level": 1, "at": "2026-11-20T14:31:40.000Z", "waitsFor": ""}],
    "blocked": "",
}

DIAGNOSTIC_RUNS: schema.DiagnosticRuns = {"damaged": 0, "runs": [_RUN]}

DIAGNOSTIC_RUN: schema.DiagnosticRunInFull = {
    **_RUN,
    "command": "dcgmi diag -r 1 -j",
    "tests": [
        {
            "name": "Page Retirement/Row Remap",
            "category": "Deployment",
            "status": "",
            "gpus": {"0": "Pass", "3": "Fail"},
            "cpus": {},
        }
    ],
    "faults": [
        {
            "code": "dcgm/84",
            "test": "Page Retirement/Row Remap",
            "text": "GPU 3 had uncorrectable memory errors and row remapping failed.",
            "gpu": 3,
            "device": "",
            "errorId": 84,
            "category": 2,
            "severity": 2,
            "action": "replace",
            "confirm": False,
            "confirmed": False,
        }
    ],
    "measures": [],
    "raw": '{"DCGM GPU Diagnostic": …}',
}

RUN_DIAGNOSTIC_REQUEST: schema.RunDiagnosticRequest = {
    "level": 2,
    "reason": "before the big run, ticket 4711",
}

RUN_DIAGNOSTIC: schema.OneGoing = {
    "going": {
        **_GOING,
        "stage": "waiting",
        "began": None,
        "elapsed": 0.0,
        "waitsFor": "idle devices: job 815",
        "test": "",
    }
}

CANCEL_DIAGNOSTIC_REQUEST: schema.CancelDiagnosticRequest = {
    "reason": "a job needs the node, ticket 4711"
}

CANCEL_DIAGNOSTIC: schema.OneGoing = {"going": {**_GOING, "stage": "ending"}}

JOBS: schema.Jobs = {"running": [], "recent": [_JOB]}

TELL_JOB_REQUEST: schema.TellJobRequest = {
    "event": "end",
    "job": "1234",
    "user": "alice",
    "uid": 1000,
    "exitCode": 1,
    "signal": 0,
    "diagnose": True,
}

TELL_JOB: schema.JobTold = {
    "ok": True,
    "job": _JOB,
    "left": [7],
    "diagnostic": {
        "asked": True,
        "id": "20261120T134820-1",
        "why": "job 1234 of alice ended with exit 1 and left #7",
    },
}

FINDINGS: schema.Findings = {"damaged": 0, "findings": [_FINDING]}

CLEAR_REQUEST: schema.ClearRequest = {"reason": "replaced the board, ticket 4711", "replaced": True}

CLEAR: schema.OneFinding = {
    "finding": {
        **_FINDING,
        "state": "cleared",
        "clearedAt": "2026-11-20T14:02:11.004Z",
        "clearedBy": "cleared by root (uid 0): replaced the board, ticket 4711",
    }
}

ACCEPT_REQUEST: schema.AcceptRequest = {
    "reason": "spare node comes Monday, ticket 4711",
    "seconds": 604800,
}

ACCEPT: schema.OneFinding = {
    "finding": {
        **_FINDING,
        "accepted": {
            "by": "root",
            "reason": "spare node comes Monday, ticket 4711",
            "since": "2026-11-20T14:02:00.000Z",
            "until": "2026-11-27T14:02:00.000Z",
        },
    }
}

REMEDY_REQUEST: schema.RemedyRequest = {"reason": "drained, reboot at 15:00"}

REMEDY: schema.OneFinding = {"finding": {**_FINDING, "state": "in_remedy"}}

WHY: schema.Why = {
    "finding": _FINDING,
    "events": [_EVENT],
    "incident": _INCIDENT,
    "rule": RULE,
    "asked": [
        {
            "layer": "table",
            "action": "reboot_node",
            "when": "now",
            "because": "NVIDIA Xid catalogue: REBOOT_NODE; nverror.h (profile nvidia, xid.toml)",
            "decides": True,
        }
    ],
    "flags": _FLAGS,
    "transitions": [
        {
            "time": SEEN,
            "state": "open",
            "action": "reboot_node",
            "cause": "xid/79 seen",
            "event": IDENTITY,
        }
    ],
}

INCIDENTS: schema.Incidents = {"incidents": [_INCIDENT]}

EVENTS: schema.Events = {"events": [_EVENT], "damaged": 0, "next": None}

WATCH: tuple[schema.WatchLine, ...] = (
    {
        "type": "verdict",
        "status": "healthy",
        "rebootRequired": False,
        "rebootConfirmed": False,
        "replacementRequired": False,
        "replacementConfirmed": False,
        "action": "none",
        "simulated": False,
        "reasons": [],
    },
    {"type": "event", "event": {**_EVENT, "id": 0}},
    {
        "type": "finding",
        "cause": "xid/79 seen",
        "event": IDENTITY,
        "finding": {
            **_FINDING,
            "confirmed": False,
            "confirmedBy": None,
            "witnesses": ["expect", "nvml", "pci"],
        },
    },
    {"type": "incident", "incident": {**_INCIDENT, "last": SEEN, "count": 1, "members": [_ROOT]}},
    {
        "type": "verdict",
        "status": "unhealthy",
        "rebootRequired": True,
        "rebootConfirmed": True,
        "replacementRequired": False,
        "replacementConfirmed": False,
        "action": "reboot_node",
        "simulated": False,
        "reasons": ["gpu/0000:65:00.0: GPU has fallen off the bus (xid/79): reboot the node"],
    },
    {"type": "heartbeat", "time": "2026-11-20T13:48:24.001Z"},
)

ANNOUNCE_REQUEST: schema.AnnounceRequest = {"line": LINE, "holdSeconds": 600}

ANNOUNCE: schema.AnnouncedDrill = {
    "id": "e7670eded13c",
    "line": LINE,
    "state": "announced",
    "finding": None,
    "simulatedUntil": "2026-11-20T13:58:08.562Z",
    "writeTo": "/dev/kmsg",
    "windowSeconds": 10.0,
}

DRILL: schema.Drill = {
    "id": "e7670eded13c",
    "line": LINE,
    "state": "seen",
    "finding": 8,
    "simulatedUntil": "2026-11-20T13:58:08.562Z",
}
