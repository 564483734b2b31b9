"""Examples of the node's routes."""

from __future__ import annotations

from vitald.server import schema
from vitald.server.examples.facts import BOOT_ID, DEVICE, FINDING, INCIDENT, REASON
from vitald.server.examples.publishers import SINK

HEALTHZ: schema.Health = {"ok": True, "version": "0.1.0"}

NODE_SUMMARY: schema.NodeSummary = {
    "status": "unhealthy",
    "action": "reboot_node",
    "reason": "Xid79",
    "reasons": [REASON],
    "rebootRequired": True,
    "replacementRequired": False,
    "rebootDue": "Xid79",
    "replacementDue": None,
    "changedAt": "2026-11-20T13:46:40.250Z",
    "findings": [
        {
            "id": 7,
            "component": "gpu/0000:65:00.0",
            "code": "xid/79",
            "reason": "Xid79",
            "action": "reboot_node",
            "when": "now",
            "since": "2026-11-20T13:46:40.250Z",
            "confirmed": True,
            "accepted": False,
            "simulated": False,
            "due": True,
            "device": "GPU-5f0c1d2e-3a4b-4c5d-8e6f-708192a3b4c5",
        }
    ],
    "openFindings": 1,
    "ignoredDrills": 0,
    "complete": True,
    "accelerators": ["gpu"],
    "bootId": BOOT_ID,
    "time": "2026-11-20T13:48:08.634Z",
}

STATUS: schema.NodeStatus = {
    "status": "unhealthy",
    "rebootRequired": True,
    "rebootConfirmed": True,
    "replacementRequired": False,
    "replacementConfirmed": False,
    "action": "reboot_node",
    "simulated": False,
    "reasons": [REASON],
    "components": [
        {
            "name": "node",
            "kind": "node",
            "id": "",
            "device": {},
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
            "device": DEVICE,
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
    "findings": [FINDING],
    "openFindings": 1,
    "incidents": [INCIDENT],
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
    "publishers": {"reported": "2026-11-20T13:48:01.114Z", "silent": False, "sinks": [SINK]},
    "configuration": {
        "file": "/etc/vitald/config.toml",
        "errors": [],
        "needsReload": [],
        "needsRestart": ["[metrics] listen"],
    },
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
            "device": {},
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
            "device": {
                "index": 3,
                "serial": "7a1c33d20f4be961",
                "pci": "0000:10:1c.0",
                "text": "Neuron device 3, serial 7a1c33d20f4be961",
            },
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

EXPECT: schema.ApiExpected = {
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

RELOAD_REQUEST: schema.ReloadRequest = {}

RELOADED: schema.Reloaded = {
    "file": "/etc/vitald/config.toml",
    "errors": [],
    "applied": ["[kernel_log] userspace"],
    "needsRestart": ["[metrics] listen"],
    "publisherNeedsRestart": [],
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
