"""
The messages of the gRPC service, as protocol buffers on the wire: a request whose arguments have
no meaning here, and a response of four fields. No code is generated for them, and protobuf is not
needed.

Source: NVIDIA/nvidia-resiliency-ext 0.7.0, shared_utils/proto/nvhcd.proto (numbers and types of the
fields); protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from grpclib.encoding.base import CodecBase

from vitald.cli.nvhcd.answer import HealthAnswer

METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
_VARINT, _LENGTH = 0, 2  # types of fields on the wire


def encode_answer(answer: HealthAnswer) -> bytes:
    """A HealthCheckResponse. A field with its default value is left out, as proto3 does."""
    return b"".join(
        (
            _encode_number(1, int(answer.success)),
            _encode_number(2, answer.exit_code),
            _encode_text(3, answer.output),
            _encode_text(4, answer.error),
        )
    )


def _encode_number(field: int, value: int) -> bytes:
    return _encode_varint(field << 3 | _VARINT) + _encode_varint(value) if value else b""


def _encode_text(field: int, text: str) -> bytes:
    data = text.encode()
    return _encode_varint(field << 3 | _LENGTH) + _encode_varint(len(data)) + data if data else b""


def _encode_varint(value: int) -> bytes:
    """Of a number that is not negative."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


class HealthCodec(CodecBase):
    """What grpclib calls between the bytes of a message and its object."""

    __content_subtype__ = "proto"

    def encode(self, message: object, message_type: object) -> bytes:  # noqa: ARG002
        assert isinstance(message, HealthAnswer)
        return encode_answer(message)

    def decode(self, data: bytes, message_type: object) -> None:
        """The arguments of a request say how to run a script, and none is run here."""
