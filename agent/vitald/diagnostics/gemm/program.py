"""
Multiplies the same matrices on each GPU, one after the other and then on all at once: a program of
its own, since a call into the driver may hang, and is ended when work needs the GPUs.

A batch is an odd number of products, added to and subtracted from one another in turn: what is left
is one product, and an error in any of them stays in it at full precision. Each batch of a GPU must
leave the same bytes, and so must equal GPUs: cuBLAS promises bit-wise equal results where version,
architecture and number of multiprocessors are equal and a single stream is active. The inputs
are derived from a hash function: values from 0.5 to 2 of either sign, so that nothing overflows.

Prints a line `testing ADDRESS` or `testing all` before each step, and at the end one JSON document:
it measures and compares, the check judges.

Source: cuBLAS documentation, "Results Reproducibility".
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import statistics
import sys
import threading
import time
from ctypes import c_void_p
from dataclasses import dataclass, field

from vitald.diagnostics.gemm.cuda import Cublas, Cuda, CudaError, Gpu

_TILE_VALUES = 524_287  # a prime number: the pattern does not repeat with the rows of a matrix
_CHUNK_BYTES = 8 << 20  # of the result that are copied to the host at a time
_AHEAD = 16  # products between two waits: a program that is ended leaves at most twice as many
_BYTES_OF_INPUT, _BYTES_OF_RESULT = 2, 4


@dataclass(frozen=True, slots=True)
class Task:
    """What is multiplied, and for how long. `products`: of a batch, an odd number. `libraries`:
    paths of libcublas, the preferred first.
    """

    libraries: tuple[str, ...]
    rows: int
    columns: int
    shared: int
    products: int
    alone_s: float
    together_s: float

    @property
    def result_bytes(self) -> int:
        return self.rows * self.columns * _BYTES_OF_RESULT


@dataclass(slots=True)
class Reference:
    """The first result of the first of some equal GPUs, with which the others are compared."""

    chunks: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Session:
    """A GPU with its matrices, and what it has computed."""

    gpu: Gpu
    task: Task
    matrices: tuple[int, int, int] = (0, 0, 0)
    events: tuple[c_void_p, ...] = ()  # begin and end of a batch, and two marks in it
    results: list[str] = field(default_factory=list)  # digests, in order
    different_bytes: dict[str, int] = field(default_factory=dict)  # from the reference, by digest
    rates: dict[str, list[float]] = field(default_factory=dict)  # by phase
    error: CudaError | None = None

    def prepare(self, cublas: Cublas) -> int:
        """Puts the matrices into its memory. Returns the version of cuBLAS."""
        version, task = self.gpu.open(cublas), self.task
        self.events = tuple(self.gpu.create_event() for _ in range(4))
        left = self._fill(b"left", task.rows * task.shared)
        right = self._fill(b"right", task.shared * task.columns)
        self.matrices = left, right, self.gpu.allocate(task.result_bytes)
        self._multiply(1)  # loads the kernels
        self._read_result(Reference())
        return version

    def run_batch(self, phase: str, reference: Reference) -> None:
        seconds = self._multiply(self.task.products)
        task = self.task
        operations = 2.0 * task.rows * task.columns * task.shared * task.products
        self.rates.setdefault(phase, []).append(operations / seconds if seconds > 0.0 else 0.0)
        digest, different = self._read_result(reference)
        self.results.append(digest)
        self.different_bytes[digest] = different

    def _fill(self, seed: bytes, count: int) -> int:
        """A matrix of so many values in the GPU's memory."""
        tile = make_tile(seed, bf16=self.gpu.uses_bf16)
        size = count * _BYTES_OF_INPUT
        pointer = self.gpu.allocate(size)
        for offset in range(0, size, len(tile)):
            self.gpu.write(pointer + offset, tile[: size - offset])
        return pointer

    def _multiply(self, products: int) -> float:
        """The seconds that they took on the GPU."""
        gpu, task = self.gpu, self.task
        begin, end, *marks = self.events
        gpu.clear(self.matrices[2], task.result_bytes)
        gpu.record(begin)
        sizes = task.rows, task.columns, task.shared
        for number in range(products):
            gpu.multiply(sizes, self.matrices, 1.0 if number % 2 == 0 else -1.0)
            group, place = divmod(number, _AHEAD)
            if place == _AHEAD - 1:
                gpu.record(marks[group % 2])
                if group:
                    gpu.wait(marks[(group - 1) % 2])
        gpu.record(end)
        gpu.wait(end)
        return gpu.measure_s(begin, end)

    def _read_result(self, reference: Reference) -> tuple[str, int]:
        """Its digest, and how many bytes differ from the reference, which it becomes if there is
        none.
        """
        digest, different = hashlib.blake2b(digest_size=16), 0
        buffer = ctypes.create_string_buffer(min(_CHUNK_BYTES, self.task.result_bytes))
        known, chunks = reference.chunks, []
        for number, offset in enumerate(range(0, self.task.result_bytes, _CHUNK_BYTES)):
            size = min(_CHUNK_BYTES, self.task.result_bytes - offset)
            self.gpu.read(buffer, self.matrices[2] + offset, size)
            chunk = buffer.raw[:size]
            digest.update(chunk)
            if known:
                different += count_different(chunk, known[number])
            else:
                chunks.append(chunk)
        if not known:
            reference.chunks = chunks
        return digest.hexdigest(), different

    def describe(self) -> dict[str, object]:
        """For the document."""
        counts: dict[str, int] = {}
        for digest in self.results:
            counts[digest] = counts.get(digest, 0) + 1
        error = self.error
        return {
            "address": self.gpu.address,
            "name": self.gpu.name,
            "uuid": self.gpu.uuid,
            "architecture": self.gpu.architecture,
            "processors": self.gpu.processors,
            "results": [
                {
                    "digest": digest,
                    "count": count,
                    "different_bytes": self.different_bytes[digest],
                }
                for digest, count in counts.items()
            ],
            "rates": {phase: statistics.median(rates) for phase, rates in self.rates.items()},
            "error": None if error is None else str(error),
        }


def make_tile(seed: bytes, *, bf16: bool) -> bytes:
    """Values of 16 bits, of which the sign and the lower bits of the number are random. Their
    exponents are those of 0.5 to 2.
    """
    random = hashlib.shake_128(seed).digest(2 * _TILE_VALUES)
    fixed, kept = (0x3F, 0x80) if bf16 else (0x38, 0x87)
    table = bytes(fixed | (value & kept) for value in range(256))
    tile = bytearray(2 * _TILE_VALUES)
    tile[0::2] = random[:_TILE_VALUES]
    tile[1::2] = random[_TILE_VALUES:].translate(table)
    return bytes(tile)


def count_different(left: bytes, right: bytes) -> int:
    """How many bytes differ between two texts of one length."""
    if left == right:
        return 0
    mask = int.from_bytes(left, "little") ^ int.from_bytes(right, "little")
    return len(left) - mask.to_bytes(len(left), "little").count(0)


def run_task(task: Task) -> dict[str, object]:
    """Runs all of it, and returns the document."""
    try:
        cuda = Cuda()
        cuda.call("cuInit", 0)
        driver = cuda.read_number("cuDriverGetVersion")
        count = cuda.read_number("cuDeviceGetCount")
        path = choose_library(task.libraries, driver // 1000)
        cublas = Cublas(path)
        sessions = [Session(Gpu(cuda, number), task) for number in range(count)]
    except (OSError, CudaError) as error:
        return {"error": str(error), "gpus": []}
    references = [Reference() for _ in sessions]
    kinds = [(item.gpu.name, item.gpu.architecture, item.gpu.processors) for item in sessions]
    by_kind = dict(zip(reversed(kinds), reversed(references)))
    version = 0
    for session, kind in zip(sessions, kinds):
        print("testing", session.gpu.address, flush=True)
        version = _run_alone(session, cublas, by_kind[kind]) or version
    print("testing all", flush=True)
    _run_together([(item, by_kind[kind]) for item, kind in zip(sessions, kinds)])
    return {
        "error": None,
        "driver": driver,
        "library": path,
        "version": version,
        "gpus": [session.describe() for session in sessions],
    }


def choose_library(libraries: tuple[str, ...], major: int) -> str:
    """The first that the driver supports: it supports its own major version of CUDA and older
    ones. Raises OSError.
    """
    for path in libraries:
        number = path.partition(".so.")[2].partition(".")[0]
        if not number.isdecimal() or int(number) <= major:
            return path
    raise OSError(f"the driver supports CUDA {major}; {', '.join(libraries)} need a newer one")


def _run_alone(session: Session, cublas: Cublas, reference: Reference) -> int:
    try:
        version = session.prepare(cublas)
        _repeat(session, "alone", session.task.alone_s, reference)
    except CudaError as error:
        session.error = error
        return 0
    return version


def _run_together(sessions: list[tuple[Session, Reference]]) -> None:
    """On each GPU that is well, in a thread of its own."""

    def run(session: Session, reference: Reference) -> None:
        try:
            session.gpu.select()
            _repeat(session, "together", session.task.together_s, reference)
        except CudaError as error:
            session.error = error

    threads = [
        threading.Thread(target=run, args=pair, daemon=True)
        for pair in sessions
        if pair[0].error is None
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _repeat(session: Session, phase: str, seconds: float, reference: Reference) -> None:
    """At least two batches: a single one has nothing to be compared with."""
    end, batches = time.monotonic() + seconds, 0
    while batches < 2 or time.monotonic() < end:
        session.run_batch(phase, reference)
        batches += 1


def main() -> None:
    """Arguments: search path of modules, the task as JSON."""
    fields = json.loads(sys.argv[2])
    task = Task(**{**fields, "libraries": tuple(fields["libraries"])})
    print(json.dumps(run_task(task)), flush=True)
