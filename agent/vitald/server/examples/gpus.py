"""Examples of the routes of GPUs."""

from __future__ import annotations

from vitald.server import schema

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
                "index": 4,
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
