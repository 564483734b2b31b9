"""Settings of the Kubernetes sink."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    prefix: str = "vitald.io"
    labels: bool = True
    annotation: bool = True
    heartbeat_s: float = 300.0
