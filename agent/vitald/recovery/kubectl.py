"""
Runs kubectl with the credentials of `[recovery] kubeconfig`.

Owns     how kubectl is called: credentials, time limit, and how much of its output is read.
Refuses  deciding what is asked, and what an answer means.
"""

from __future__ import annotations

from vitald.recovery import programs
from vitald.recovery.programs import ProgramResult
from vitald.recovery.settings import RecoverySettings

_MAX_OUTPUT_BYTES = 4 * 1024 * 1024


class Kubectl:
    def __init__(self, settings: RecoverySettings) -> None:
        self._kubeconfig = settings.kubeconfig
        self._deadline_s = settings.deadline_s

    def run(self, *arguments: str, given: bytes = b"") -> ProgramResult:
        """`given`: its standard input. An answer that is too long is trouble."""
        # Without a cache, which would be in root's home: no folder can have this name.
        argv = (
            "kubectl",
            f"--kubeconfig={self._kubeconfig}",
            "--request-timeout=20s",
            "--cache-dir=/dev/null/none",
            *arguments,
        )
        done = programs.run_program(
            argv, self._deadline_s, max_output=_MAX_OUTPUT_BYTES, given=given
        )
        if not done.trouble and len(done.output) >= _MAX_OUTPUT_BYTES:
            return ProgramResult(exit_code=done.exit_code, trouble="kubectl shows too much")
        return done
