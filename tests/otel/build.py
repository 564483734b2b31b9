"""
Builds an OpenTelemetry Collector with the components that packaging/otel/collector.yaml names,
once, into the cache of tests/go_programs.py.

    python -m tests.otel.build

Its builder and the components come from the Go module proxy; about 15 minutes of processor time and
4 GB of disk while it builds. Source: open-telemetry/opentelemetry-collector cmd/builder/README.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from tests.go_programs import CACHE, CannotBuild, build_once, report_step, run_command

VERSION, STABLE = "0.155.0", "1.61.0"  # of one release: its modules, and those that are stable
_FOLDER = CACHE / f"otel-{VERSION}"
_PROGRAM = "otelcol"
_CORE = "go.opentelemetry.io/collector"
_CONTRIB = "github.com/open-telemetry/opentelemetry-collector-contrib"
_COMPONENTS = {
    "receivers": (
        f"{_CONTRIB}/receiver/prometheusreceiver",
        f"{_CONTRIB}/receiver/journaldreceiver",
    ),
    "processors": (
        f"{_CORE}/processor/memorylimiterprocessor",
        f"{_CONTRIB}/processor/resourceprocessor",
        f"{_CONTRIB}/processor/resourcedetectionprocessor",
    ),
    "exporters": (
        f"{_CORE}/exporter/otlpexporter",
        f"{_CORE}/exporter/otlphttpexporter",
    ),
    "extensions": (f"{_CONTRIB}/extension/storage/filestorage",),
}
# What the journald receiver is made of, in a version that more proxies have.
_REPLACED = {f"{_CONTRIB}/{name}": "v0.149.0" for name in ("pkg/stanza", "internal/coreinternal")}
_PROVIDERS = ("envprovider", "fileprovider", "yamlprovider")


def find_built_collector() -> Path | None:
    """The collector; None until it has been built."""
    return _FOLDER / _PROGRAM if _FOLDER.is_dir() else None


def find_collector() -> Path:
    """The collector; builds it if it is not there. Raises CannotBuild."""
    return build_once(_FOLDER, _build_collector) / _PROGRAM


def _build_collector(go: str, scratch: Path, into: Path) -> None:
    report_step("the collector, about 15 minutes of processor time")
    sources = scratch / "sources"
    (scratch / "components.yaml").write_text(yaml.safe_dump(_describe_collector(go, sources)))
    run_command([go, "install", f"{_CORE}/cmd/builder@v{VERSION}"], scratch, scratch)
    # The builder would fetch what only the components' tests need, which not every proxy has.
    write_only = ["--skip-get-modules", "--skip-compilation"]
    builder = str(scratch / "gopath/bin/builder")
    run_command([builder, "--config=components.yaml", *write_only], scratch, scratch)
    (sources / "go.mod").write_text(_list_modules())
    flags = ["-trimpath", "-ldflags=-s -w"]
    run_command([go, "build", *flags, "-o", f"{into}/{_PROGRAM}", "."], sources, scratch)


def _describe_collector(go: str, output: Path) -> dict[str, object]:
    described: dict[str, object] = {
        kind: [{"gomod": f"{module} v{VERSION}"} for module in modules]
        for kind, modules in _COMPONENTS.items()
    }
    described["providers"] = [
        {"gomod": f"{_CORE}/confmap/provider/{name} v{STABLE}"} for name in _PROVIDERS
    ]
    described["dist"] = {"name": _PROGRAM, "output_path": str(output), "go": go, "version": VERSION}
    return described


def _list_modules() -> str:
    """go.mod, with what the builder's sources import; Go adds the rest."""
    required = [f"{_CORE}/otelcol v{VERSION}"]
    required += [f"{module} v{VERSION}" for modules in _COMPONENTS.values() for module in modules]
    required += [f"{_CORE}/confmap/provider/{name} v{STABLE}" for name in _PROVIDERS]
    replaced = [f"{module} => {module} {version}" for module, version in _REPLACED.items()]
    lines = "".join(f"require {each}\n" for each in required)
    lines += "".join(f"replace {each}\n" for each in replaced)
    return f"module {_PROGRAM}\n\ngo 1.25\n\n{lines}"


if __name__ == "__main__":
    try:
        print(find_collector())
    except CannotBuild as error:
        sys.exit(f"the collector cannot be built: {error}")
