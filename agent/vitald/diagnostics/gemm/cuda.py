"""
The calls into libcuda and libcublas that the multiplication needs, by ctypes.

Owns     loading both libraries, the signatures, and errors by name and text.
Refuses  what is multiplied and compared.

Source: cuda.h (CUDA driver API), library_types.h, cublas_api.h. libcublas is loaded by its path;
libcublasLt, which it needs, lies beside it.
"""

from __future__ import annotations

import ctypes
import uuid
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

_DRIVER = "libcuda.so.1"
_COMPUTE_MAJOR, _COMPUTE_MINOR, _MULTIPROCESSORS = 75, 76, 16  # CU_DEVICE_ATTRIBUTE_...
_FP32, _FP16, _BF16 = 0, 2, 14  # CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF
_COMPUTE_FP32, _DEFAULT_ALGORITHM, _NOT_TRANSPOSED = 68, -1, 0
_AMPERE = 8  # the first architecture that multiplies BF16
_LENGTH = 256
_STATUS = {  # cublasStatus_t
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
}
_DRIVER_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (c_void_p,),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDeviceGetUuid": (c_char_p, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemcpyHtoD_v2": (c_uint64, c_char_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_char_p, c_uint64, c_size_t),
    "cuMemsetD32_v2": (c_uint64, c_uint, c_size_t),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p),
}
_CUBLAS_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cublasCreate_v2": (c_void_p,),
    "cublasGetVersion_v2": (c_void_p, c_void_p),
    "cublasGemmEx": (
        *(c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p),
        *(c_uint64, c_int, c_int, c_uint64, c_int, c_int, c_void_p),
        *(c_uint64, c_int, c_int, c_int, c_int),
    ),
}


class CudaError(Exception):
    """A call failed. `text`: the library's own words."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})")
        self.call = call
        self.code = code
        self.text = text


class Cuda:
    """The driver's library. Raises OSError if there is none."""

    def __init__(self) -> None:
        self._library = _load(_DRIVER, _DRIVER_SIGNATURES)
        self._library.cuGetErrorString.argtypes = (c_int, c_void_p)

    def call(self, name: str, *arguments: object) -> None:
        """Raises CudaError."""
        if code := getattr(self._library, name)(*arguments):
            text = c_char_p()
            self._library.cuGetErrorString(code, byref(text))
            raise CudaError(name, code, (text.value or b"unknown error code").decode())

    def read_number(self, name: str, *arguments: object) -> int:
        """The number that a call writes to its first argument."""
        number = c_int()
        self.call(name, byref(number), *arguments)
        return number.value


class Cublas:
    """libcublas, the library at `path`. Raises OSError if it cannot be loaded."""

    def __init__(self, path: str) -> None:
        # pip's packages need not find it by themselves
        beside = Path(path).with_name(Path(path).name.replace("libcublas", "libcublasLt"))
        if beside.exists():
            ctypes.CDLL(str(beside), ctypes.RTLD_GLOBAL)
        self._library = _load(path, _CUBLAS_SIGNATURES)

    def call(self, name: str, *arguments: object) -> None:
        """Raises CudaError."""
        if code := getattr(self._library, name)(*arguments):
            raise CudaError(name, code, _STATUS.get(code, "unknown status of cuBLAS"))


class Gpu:
    """One GPU: what it is, and what it can be asked to do. All its work is in one stream."""

    def __init__(self, cuda: Cuda, ordinal: int) -> None:
        self._cuda = cuda
        self._device = cuda.read_number("cuDeviceGet", ordinal)
        self._context, self._handle = c_void_p(), c_void_p()
        self._cublas: Cublas | None = None
        self.name = self._read_text("cuDeviceGetName")
        self.address = self._read_text("cuDeviceGetPCIBusId").lower()
        self.architecture = (
            f"{self._read_attribute(_COMPUTE_MAJOR)}.{self._read_attribute(_COMPUTE_MINOR)}"
        )
        self.processors = self._read_attribute(_MULTIPROCESSORS)
        identity = ctypes.create_string_buffer(16)
        cuda.call("cuDeviceGetUuid", identity, self._device)
        self.uuid = f"GPU-{uuid.UUID(bytes=identity.raw)}"

    def open(self, cublas: Cublas) -> int:
        """Makes the context, and returns the version of cuBLAS."""
        self._cuda.call("cuDevicePrimaryCtxRetain", byref(self._context), self._device)
        self.select()
        self._cublas = cublas
        cublas.call("cublasCreate_v2", byref(self._handle))
        version = c_int()
        cublas.call("cublasGetVersion_v2", self._handle, byref(version))
        return version.value

    def select(self) -> None:
        """Makes it the GPU of the calling thread."""
        self._cuda.call("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> int:
        """The address of so many bytes of its memory."""
        pointer = c_uint64()
        self._cuda.call("cuMemAlloc_v2", byref(pointer), size)
        return pointer.value

    def write(self, pointer: int, content: bytes) -> None:
        self._cuda.call("cuMemcpyHtoD_v2", pointer, content, len(content))

    def read(self, buffer: ctypes.Array[ctypes.c_char], pointer: int, size: int) -> None:
        self._cuda.call("cuMemcpyDtoH_v2", buffer, pointer, size)

    def clear(self, pointer: int, size: int) -> None:
        self._cuda.call("cuMemsetD32_v2", pointer, 0, size // 4)

    def create_event(self) -> c_void_p:
        event = c_void_p()
        self._cuda.call("cuEventCreate", byref(event), 0)
        return event

    def record(self, event: c_void_p) -> None:
        self._cuda.call("cuEventRecord", event, None)

    def wait(self, event: c_void_p) -> None:
        self._cuda.call("cuEventSynchronize", event)

    def measure_s(self, begin: c_void_p, end: c_void_p) -> float:
        milliseconds = c_float()
        self._cuda.call("cuEventElapsedTime", byref(milliseconds), begin, end)
        return milliseconds.value / 1e3

    def multiply(
        self, sizes: tuple[int, int, int], matrices: tuple[int, int, int], factor: float
    ) -> None:
        """Adds `factor` times A by B to C. `sizes`: rows of A, columns of B, what both share."""
        (rows, columns, shared), (left, right, result) = sizes, matrices
        kind = _BF16 if self.uses_bf16 else _FP16
        assert self._cublas is not None
        self._cublas.call(
            "cublasGemmEx",
            *(self._handle, _NOT_TRANSPOSED, _NOT_TRANSPOSED, rows, columns, shared),
            *(byref(c_float(factor)), left, kind, rows, right, kind, shared),
            *(byref(c_float(1.0)), result, _FP32, rows, _COMPUTE_FP32, _DEFAULT_ALGORITHM),
        )

    @property
    def uses_bf16(self) -> bool:
        """Otherwise it multiplies FP16."""
        return int(self.architecture.partition(".")[0]) >= _AMPERE

    def _read_text(self, name: str) -> str:
        buffer = ctypes.create_string_buffer(_LENGTH)
        self._cuda.call(name, buffer, _LENGTH, self._device)
        return buffer.value.decode("utf-8", "replace")

    def _read_attribute(self, attribute: int) -> int:
        return self._cuda.read_number("cuDeviceGetAttribute", attribute, self._device)


def _load(name: str, signatures: dict[str, tuple[object, ...]]) -> ctypes.CDLL:
    library = ctypes.CDLL(name)
    for function, arguments in signatures.items():
        try:
            getattr(library, function).argtypes = arguments
        except AttributeError:
            raise OSError(f"{name} has no {function}") from None
    return library
