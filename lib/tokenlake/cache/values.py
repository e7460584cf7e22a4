"""Values as bytes and back: data alone, so that nothing that is read can run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa

from tokenlake.errors import ConfigError

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Shape: TypeAlias = "dict[str, Any]"
"""The kind of a value, and what its bytes do not say."""

_ARROW: Final[Any] = pa
_PLAIN: Final = "biufcmMSU"
_EXPECTED: Final = "bytes, JSON values, numpy arrays, a dict of these, or an Arrow table or batch"


def encoded(value: object) -> tuple[Shape, bytes]:
    """Return a value's shape and bytes.

    Raises:
        ConfigError: it holds what a cache does not keep.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return {"kind": "bytes"}, bytes(value)
    if isinstance(value, pa.Table | pa.RecordBatch):
        return {"kind": "table" if isinstance(value, pa.Table) else "batch"}, _arrow_bytes(value)
    if isinstance(value, np.ndarray):
        return {"kind": "array", **_kind_of(cast("Array", value), "$")}, cast("Array", value).tobytes()
    if isinstance(value, Mapping):
        return _encoded_mapping(cast("Mapping[Any, Any]", value))
    return {"kind": "json"}, _json_bytes(value, "$")


def decoded(shape: Shape, data: memoryview) -> Any:
    """Return the value of a shape and its bytes; arrays are copies and can be written to, tables are views."""
    match shape["kind"]:
        case "bytes":
            return bytes(data)
        case "table":
            return _ARROW.ipc.open_stream(_ARROW.py_buffer(data)).read_all()
        case "batch":
            return _ARROW.ipc.open_stream(_ARROW.py_buffer(data)).read_next_batch()
        case "array":
            return _array(shape, data)
        case "json":
            return json.loads(bytes(data))
        case "mapping":
            return _decoded_mapping(shape["fields"], data)
        case kind:
            raise ValueError(f"no such kind of value: {kind!r}")


def _encoded_mapping(value: Mapping[Any, Any]) -> tuple[Shape, bytes]:
    """Return a dict: its arrays one after the other, then a JSON list of everything else."""
    for key in value:
        if not isinstance(key, str):
            raise ConfigError(f"cache: $ has the key {key!r}; expected texts as keys, so write {str(key)!r}")
    arrays = {name: each for name, each in value.items() if isinstance(each, np.ndarray)}
    kinds = {name: _kind_of(each, f"$.{name}") for name, each in arrays.items()}
    rest = [each for name, each in value.items() if name not in arrays]
    fields = [[name, kinds.get(name)] for name in value]
    body = b"".join(each.tobytes() for each in arrays.values())
    return {"kind": "mapping", "fields": fields}, body + _json_bytes(rest, "$")


def _decoded_mapping(fields: list[tuple[str, Shape | None]], data: memoryview) -> dict[str, Any]:
    at, arrays = 0, dict[str, Array]()
    for name, shape in fields:
        if shape is not None:
            arrays[name] = _array(shape, data[at:])
            at += arrays[name].nbytes
    rest = iter(json.loads(bytes(data[at:])))
    return {name: next(rest) if shape is None else arrays[name] for name, shape in fields}


def _kind_of(array: Array, where: str) -> Shape:
    if array.dtype.kind not in _PLAIN:
        raise ConfigError(
            f"cache: {where} is an array of {array.dtype}; expected numbers, booleans or fixed texts"
        )
    return {"dtype": array.dtype.str, "shape": list(array.shape)}


def _array(shape: Shape, data: memoryview) -> Array:
    kind, lengths = np.dtype(shape["dtype"]), shape["shape"]
    count = int(np.prod(lengths, dtype=np.int64))
    return np.frombuffer(data, kind, count).reshape(lengths).copy() if count else np.zeros(lengths, kind)


def _arrow_bytes(value: Any) -> bytes:
    sink = _ARROW.BufferOutputStream()
    with _ARROW.ipc.new_stream(sink, value.schema) as writer:
        writer.write(value)
    return sink.getvalue().to_pybytes()


def _json_bytes(value: object, where: str) -> bytes:
    for problem in _no_json(value, where):
        raise ConfigError(f"cache: {problem}; expected {_EXPECTED}")
    return json.dumps(value).encode()


def _no_json(value: object, where: str) -> Iterator[str]:
    """Yield what would not come back from JSON as it is."""
    if type(value) is list:
        for index, each in enumerate(cast("list[object]", value)):
            yield from _no_json(each, f"{where}[{index}]")
    elif type(value) is dict:
        for key, each in cast("dict[object, object]", value).items():
            if type(key) is not str:
                yield f"{where} has the key {key!r}"
            yield from _no_json(each, f"{where}.{key}")
    elif type(value) not in (str, int, float, bool, type(None)):
        yield f"{where} is a {type(value).__name__}"
