"""
What a job and the daemon exchange over the job socket: the packets, and the page of a rank.

Owns     the layout of the page, the words of the packets, and their limits.
Refuses  reading a page or a packet, which `vitald.jobsocket` does.

A packet is one JSON object. A page is a sealed memory file that the daemon makes for each rank: the
job writes its last step into it, and the daemon reads it once a second. `vitald_job`, which jobs
import, repeats these constants, as it must not import the daemon; a test compares them.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag

VERSION = 1

# As `struct` writes it: seq, step, monotonic, seconds, busy, loss, grad_norm, phase, flags,
# phase_limit, seq. Numbers that are not known are NaN; `seconds` is the time of the last step,
# `busy` its part before the first collective, `monotonic` CLOCK_MONOTONIC when it ended,
# `phase_limit` the seconds that the phase may take, 0 if it has no limit. Both `seq` count the
# writes: they are equal unless a write is in progress, and 0 before the first one.
PAGE_FORMAT = "<QQdddddIIdQ"
PAGE_BYTES = 80  # of the layout
PAGE_FILE_BYTES = 4096  # of the file, which can be neither shrunk nor grown


class Phase(IntEnum):
    """What a rank does, as `phase` of its page; lower-case in packets."""

    INIT = 0
    TRAIN = 1
    EVAL = 2
    CHECKPOINT = 3
    WAIT = 4
    END = 5  # it says goodbye: the end of its connection is no death

    @property
    def word(self) -> str:
        return self.name.lower()


class PageFlag(IntFlag):
    """`flags` of a page."""

    # The loss or the gradient norm was not finite. A client keeps it set for `HOLD_FLAGS_S` after
    # such a step, so that no reading misses it.
    NOT_FINITE = 1


HOLD_FLAGS_S = 2.5


class PacketKind(Enum):
    """`kind` of a packet; the last two are sent by the daemon."""

    HELLO = "hello"
    LISTEN = "listen"  # instead of a hello: only the advice is wanted
    STEP = "step"
    PHASE = "phase"
    CHECKPOINT = "checkpoint"
    ERROR = "error"
    WELCOME = "welcome"
    ADVICE = "advice"


class CheckpointState(Enum):
    BEGIN = "begin"
    END = "end"
    FAILED = "failed"


class CheckpointTier(Enum):
    """Where a checkpoint is written: memory of this or another node, its disk, shared storage."""

    MEMORY = "memory"
    LOCAL = "local"
    GLOBAL = "global"


class ErrorKind(Enum):
    """What an error of a job is about."""

    NCCL = "nccl"
    CUDA = "cuda"
    NAN = "nan"
    OOM = "oom"
    NEURON = "neuron"
    OTHER = "other"


OBSERVER = "observer"  # `role` of a hello: no rank, which reports errors of the job
MAX_HOLD_S = 3600.0  # `hold_s` of a hello: a rank goes on for so long without a connection
MAX_PACKET_BYTES = 2048
MAX_PACKETS_PER_S = 20  # of a connection; what exceeds it is dropped and counted
MAX_WRONG_PACKETS = 10  # then the connection is closed
MAX_ERROR_TEXT = 512  # characters
EVERY_S = 1.0  # `every_s` of a welcome: the daemon reads the pages this often
