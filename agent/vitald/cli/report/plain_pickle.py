"""
Reads a pickle that holds plain values only: None, booleans, numbers, texts, lists, tuples and
dictionaries. A dump of PyTorch's flight recorder is one, and its author may be hostile.

Owns     the machine of the format, as far as such values need it.
Refuses  whatever names a class or a function, calls one, or could: there is no code for it. So are
         texts in decimal and lists of bytes. Python's own unpickler is not used: it reserves memory
         for numbers that a file only claims, and hashes keys that take for ever.

Sources: Python Lib/pickletools.py (opcodes); PyTorch torch/csrc/jit/serialization/pickler.cpp,
which writes protocol 2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

MAX_VALUES = 2_000_000  # opcodes of a file; the largest value is an empty dictionary, 64 bytes
_MAX_PROTOCOL = 5
_MAX_LONG_BYTES = 16
_MAX_KEY = 65535  # of a number


class NotPlain(ValueError):
    """It is torn, not a pickle, or has more in it than plain values. The text says what, and at
    which byte.
    """


def read_plain_pickle(data: bytes) -> object:
    """The value in a pickle. Raises NotPlain."""
    return _Machine(data).run()


def _is_plain_key(key: object) -> bool:
    """The hash of a nested tuple may take for ever, and numbers can be chosen whose hashes are all
    the same: those of texts are random in each process.
    """
    return isinstance(key, str) or (isinstance(key, int) and 0 <= key <= _MAX_KEY)


class _Machine:
    """The stack of one pickle and its memo."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}

    def run(self) -> object:
        for _ in range(MAX_VALUES):
            begin = self._at
            code = self._take(1)[0]
            if code == _STOP:
                if len(self._stack) != 1 or self._marks:
                    raise NotPlain(f"it ends at byte {begin} with {len(self._stack)} values")
                return self._stack[0]
            step = _STEPS.get(code)
            if step is None:
                raise NotPlain(f"opcode {code:#04x} at byte {begin} is none of a plain value")
            try:
                step(self)
            except (IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
                raise NotPlain(f"byte {begin}: {type(error).__name__}") from None
        raise NotPlain(f"more than {MAX_VALUES} values")

    # What the steps are made of

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise NotPlain(f"it is torn: it ends at byte {len(self._data)}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def take_number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def push(self, value: object) -> None:
        self._stack.append(value)

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def pop_marked(self) -> list[object]:
        """The values above the last mark, which goes, too."""
        mark = self._marks.pop()
        values = self._stack[mark:]
        del self._stack[mark:]
        return values

    def pop(self, count: int) -> list[object]:
        """The last values. A mark is not passed."""
        if len(self._stack) - (self._marks[-1] if self._marks else 0) < count:
            raise IndexError
        values = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return values

    def remember(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def recall(self, number: int) -> None:
        self.push(self._memo[number])

    @property
    def memo_size(self) -> int:
        return len(self._memo)

    def append(self, values: list[object]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise TypeError
        target.extend(values)

    def set_items(self, values: list[object]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise TypeError
        for key, value in zip(values[::2], values[1::2]):
            if not _is_plain_key(key):
                raise TypeError
            target[key] = value

    def check_protocol(self) -> None:
        protocol = self.take_number("<B")
        if protocol > _MAX_PROTOCOL:
            raise NotPlain(f"protocol {protocol} is not known")

    def push_text(self, form: str) -> None:
        self.push(self._take(self.take_number(form)).decode("utf-8", "surrogatepass"))

    def push_long(self) -> None:
        size = self.take_number("<B")
        if size > _MAX_LONG_BYTES:
            raise NotPlain(f"a number of {size} bytes")
        self.push(int.from_bytes(self._take(size), "little", signed=True))

    def push_float(self) -> None:
        self.push(float(struct.unpack(">d", self._take(8))[0]))


_STOP = ord(".")
_STEPS: dict[int, Callable[[_Machine], object]] = {
    0x80: _Machine.check_protocol,
    0x95: lambda machine: machine.take_number("<Q"),  # FRAME: only a hint for a reader
    ord("N"): lambda machine: machine.push(None),
    0x88: lambda machine: machine.push(True),
    0x89: lambda machine: machine.push(False),
    ord("K"): lambda machine: machine.push(machine.take_number("<B")),
    ord("M"): lambda machine: machine.push(machine.take_number("<H")),
    ord("J"): lambda machine: machine.push(machine.take_number("<i")),
    0x8A: _Machine.push_long,
    ord("G"): _Machine.push_float,
    0x8C: lambda machine: machine.push_text("<B"),
    ord("X"): lambda machine: machine.push_text("<I"),
    ord("]"): lambda machine: machine.push([]),
    ord("a"): lambda machine: machine.append(machine.pop(1)),
    ord("e"): lambda machine: machine.append(machine.pop_marked()),
    ord("}"): lambda machine: machine.push({}),
    ord("s"): lambda machine: machine.set_items(machine.pop(2)),
    ord("u"): lambda machine: machine.set_items(machine.pop_marked()),
    ord(")"): lambda machine: machine.push(()),
    ord("t"): lambda machine: machine.push(tuple(machine.pop_marked())),
    0x85: lambda machine: machine.push(tuple(machine.pop(1))),
    0x86: lambda machine: machine.push(tuple(machine.pop(2))),
    0x87: lambda machine: machine.push(tuple(machine.pop(3))),
    ord("("): _Machine.mark,
    ord("h"): lambda machine: machine.recall(machine.take_number("<B")),
    ord("j"): lambda machine: machine.recall(machine.take_number("<I")),
    ord("q"): lambda machine: machine.remember(machine.take_number("<B")),
    ord("r"): lambda machine: machine.remember(machine.take_number("<I")),
    0x94: lambda machine: machine.remember(machine.memo_size),
}
