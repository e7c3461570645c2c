"""Dynamic height and width for an ONNX graph that was exported with fixed ones.

YuNet is published for 640x640, though nothing in it but the declarations needs that. The `onnx` package would edit them
in three lines, but serving would carry it for that alone, so this module walks the protobuf wire format itself
(https://protobuf.dev/programming-guides/encoding/): it names the dimensions of inputs and outputs and leaves out the
recorded shapes of values in between, which the runtime infers again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from data.errors import MienError

# Field numbers of onnx.proto.
_MODEL_GRAPH: Final = 7
_GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_VALUE_INFO = 11, 12, 13
_VALUE_TYPE: Final = 2
_TYPE_TENSOR: Final = 1
_TENSOR_SHAPE: Final = 2
_SHAPE_DIM: Final = 1
_DIM_VALUE, _DIM_PARAM = 1, 2
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


class NotOnnx(MienError):
    """Bytes that do not follow the protobuf wire format."""


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a message: its number, its wire type, its payload, and its bytes as they stood."""

    number: int
    wire: int
    payload: bytes
    raw: bytes


def with_free_dimensions(model: bytes, fixed: frozenset[int]) -> bytes:
    """Return the model with every declared dimension whose size is in `fixed` made free.

    Args:
        model: a serialized ModelProto.
        fixed: sizes to free, such as 640; each becomes the name `d640`.
    Raises: NotOnnx.
    """
    return _edited(model, _MODEL_GRAPH, lambda graph: _free_graph(graph, fixed))


def _free_graph(graph: bytes, fixed: frozenset[int]) -> bytes:
    kept = b"".join(field.raw for field in _fields(graph) if field.number != _GRAPH_VALUE_INFO)
    for number in (_GRAPH_INPUT, _GRAPH_OUTPUT):
        kept = _edited(kept, number, lambda value: _free_value(value, fixed))
    return kept


def _free_value(value: bytes, fixed: frozenset[int]) -> bytes:
    def shape(message: bytes) -> bytes:
        return _edited(message, _SHAPE_DIM, lambda dim: _free_dim(dim, fixed))

    def tensor(message: bytes) -> bytes:
        return _edited(message, _TENSOR_SHAPE, shape)

    return _edited(value, _VALUE_TYPE, lambda kind: _edited(kind, _TYPE_TENSOR, tensor))


def _free_dim(dim: bytes, fixed: frozenset[int]) -> bytes:
    for field in _fields(dim):
        if field.number == _DIM_VALUE and _varint(field.payload, 0)[0] in fixed:
            return _message(_DIM_PARAM, f"d{_varint(field.payload, 0)[0]}".encode())
    return dim


def _edited(message: bytes, number: int, edit: Callable[[bytes], bytes]) -> bytes:
    """The message with `edit` applied to the payload of each field of that number."""
    return b"".join(
        _message(number, edit(field.payload)) if field.number == number and field.wire == _LENGTH else field.raw
        for field in _fields(message)
    )


def _fields(message: bytes) -> Iterator[_Field]:
    position = 0
    while position < len(message):
        start = position
        key, position = _varint(message, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            begin, end = position, _varint(message, position)[1]
        elif wire == _LENGTH:
            length, begin = _varint(message, position)
            end = begin + length
        elif wire in (_EIGHT_BYTES, _FOUR_BYTES):
            begin, end = position, position + (8 if wire == _EIGHT_BYTES else 4)
        else:
            raise NotOnnx(f"wire type {wire} at byte {start}: not a protobuf message")
        if number == 0 or end > len(message):
            raise NotOnnx(f"field at byte {start} of {len(message)} leaves the message")
        yield _Field(number, wire, message[begin:end], message[start:end])
        position = end


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Read a base-128 number; returns it and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise NotOnnx("message ends within a number")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise NotOnnx("number of more than 64 bits")


def _message(number: int, payload: bytes) -> bytes:
    return _number(number << 3 | _LENGTH) + _number(len(payload)) + payload


def _number(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
