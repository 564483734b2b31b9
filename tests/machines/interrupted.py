"""
Kills `packaging/install` at many moments on a booted machine and runs it again to its end, by hand:

    .venv/bin/python -m tests.machines.interrupted --package FILE
    .venv/bin/python -m tests.machines.interrupted --network

The first tries only the package manager's part, some 15 s a round; the second all of it, from the
lists of packages and python3 on, 1 to 2 minutes a round, with the host's network and its pip's
configuration. --rounds N (20) spreads the moments over the time that one whole run takes; every
third one hits dpkg alone, or the script alone. Needs what tests/booted needs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from tests.booted.installer import Run, dpkg_state, put_checkout
from tests.booted.machine import Machine

HITS: tuple[tuple[str, ...], ...] = ((), (), ("dpkg",), (), (), ("install",))
OWN = '[metrics]\nlisten = "127.0.0.1:19820"\n'  # with the host's network: not where others listen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.machines.interrupted")
    parser.add_argument("--package", type=Path)
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    wanted = parser.parse_args()
    if (wanted.package is None) != wanted.network:
        parser.error("one of --package and --network")
    with Machine("vitald-interrupted", network=wanted.network) as machine:
        put_checkout(machine)
        arguments: tuple[str, ...] = ()
        if wanted.package is None:
            configure_pip(machine)
        else:
            shutil.copy(wanted.package, machine.root / "root/new.deb")
            arguments = ("--package", "/root/new.deb")
        return sweep(machine, wanted.rounds, arguments)


def configure_pip(machine: Machine) -> None:
    """As the host's; with the host's certificates at a place where no package puts its own."""
    config, certificates = Path("/etc/pip.conf"), Path("/etc/ssl/certs/ca-certificates.crt")
    if config.exists() and certificates.exists():
        copy = "/etc/host.pem"
        shutil.copy(certificates, machine.root / copy.lstrip("/"))
        machine.write("/etc/pip.conf", config.read_text().replace(str(certificates), copy))


def sweep(machine: Machine, rounds: int, arguments: tuple[str, ...]) -> int:
    bare(machine, arguments)
    begun = time.monotonic()
    run = Run(machine, *arguments)
    assert run.end(600.0) == 0, run.said
    whole = time.monotonic() - begun
    print(f"{run.said}uninterrupted: {whole:.1f} s", flush=True)
    failed = 0
    for number in range(rounds):
        if arguments == () or number % 2:  # else over the one that is there
            bare(machine, arguments)
        moment, names = whole * (number + 0.5) / rounds, HITS[number % len(HITS)]
        run = Run(machine, *arguments)
        time.sleep(moment)
        hit = run.kill(*names) if run.process.poll() is None else []
        left = dpkg_state(machine)
        if names == ("dpkg",):
            run.end(600.0)  # it sees that dpkg was killed, or was not hit at all
        again, begun = Run(machine, *arguments), time.monotonic()
        code = again.end(600.0)
        trouble = unsound(machine) if code == 0 else f"exit {code}\n{again.said}"
        failed += bool(trouble)
        print(
            f"{moment:6.2f} s  killed {'+'.join(hit) or 'nothing'}, left {left},"
            f" then {time.monotonic() - begun:.1f} s: {trouble or 'well'}",
            flush=True,
        )
    print(f"{rounds} rounds, {failed} failed", flush=True)
    return int(failed > 0)


def bare(machine: Machine, arguments: tuple[str, ...]) -> None:
    """No vitald, and where the installer gets it, no Python either."""
    machine.run("dpkg", "--purge", "vitald", check=False)
    if not arguments:
        machine.sh("apt-get purge -q -y --autoremove 'python3*' 'libpython3*'", timeout=120.0)
    machine.write("/etc/vitald/config.toml", OWN)


def unsound(machine: Machine) -> str:
    """What is wrong, or nothing."""
    audit = machine.run("dpkg", "--audit").stdout
    state = machine.run("systemctl", "is-active", "vitald", check=False).stdout.strip()
    verified = machine.run("dpkg", "--verify", "vitald", check=False).stdout
    conffile = " c /etc/vitald/config.toml"
    changed = [line for line in verified.splitlines() if not line.endswith(conffile)]
    left = machine.sh("ls -d /var/cache/vitald* /etc/vitald/*.* | grep -v config.toml$ || true")
    wrong = [audit, "" if state == "active" else f"service {state}", *changed, left]
    if (machine.root / "etc/vitald/config.toml").read_text() != OWN:
        wrong.append("the configuration is not kept")
    return "; ".join(filter(None, wrong))


if __name__ == "__main__":
    sys.exit(main())
