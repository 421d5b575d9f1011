"""Arrow and JSON forms of the records, derived from their annotations: nothing is declared twice.

What it does: `schema(cls)` is the Arrow schema, `to_row`/`from_row` go to and from the Python values that Arrow
takes, `to_json`/`from_json` to and from one line of the journal.
What it leaves out: files (`storage/journal.py`, `storage/dataset.py`).

A record that gained a field still reads old data: a missing field takes its default, and None where it may be None.
A field that is no longer known is passed over.
"""

import json
import math
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

import orjson
import pyarrow as pa

Record = TypeVar("Record")
Convert = Callable[[Any], Any]

_MARKED: dict[str, pa.DataType] = {
    "list<int32>": pa.list_(pa.int32()),
    "list<float32>": pa.list_(pa.float32()),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "json": pa.string(),
}
_PLAIN: dict[type, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    arrow: pa.DataType
    to_row: Convert  # record value -> value for Arrow
    from_row: Convert  # value out of Arrow -> record value
    from_json: Convert  # parsed JSON -> record value
    default: Any  # MISSING where a value must be there


def _same(value: Any) -> Any:
    return value


def _tuple(value: Any) -> tuple:
    return tuple(value)


def _floats(value: Any) -> tuple[float, ...]:
    """JSON has no NaN: it comes back from null."""
    if None in value:
        return tuple(math.nan if item is None else item for item in value)
    return tuple(value)


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def _seconds(value: datetime | float | int) -> float:
    if isinstance(value, datetime):
        if value.tzinfo is None:  # how some readers hand out UTC columns
            value = value.replace(tzinfo=UTC)
        return value.timestamp()
    return float(value)


def _json_text(value: Any) -> str | None:
    return None if value is None else dumps(value).decode()


def _json_value(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def _marked(mark: str) -> tuple[pa.DataType, Convert, Convert, Convert]:
    if mark == "json":
        return _MARKED[mark], _json_text, _json_value, _same
    if mark == "timestamp":
        return _MARKED[mark], _micros, _seconds, float
    return _MARKED[mark], list, _tuple, _floats if "float" in mark else _tuple


def _convert(annotation: Any) -> tuple[pa.DataType, Convert, Convert, Convert]:
    """The Arrow type of one annotation, and how its values go to Arrow, come back, and come out of JSON."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _marked(args[1])
    if origin is typing.Literal:
        return pa.string(), _same, _same, _same
    if origin in (typing.Union, types.UnionType):
        [inner] = [arg for arg in args if arg is not type(None)]
        arrow, *ways = _convert(inner)
        return arrow, *(_optional(way) for way in ways)
    if origin is tuple:
        arrow, *ways = _convert(args[0])
        return pa.list_(arrow), _each(ways[0], list), _each(ways[1], tuple), _each(ways[2], tuple)
    if is_dataclass(annotation):
        struct = pa.struct([(field.name, field.arrow) for field in _fields(annotation)])
        return struct, _plain_row, lambda row: from_row(annotation, row), lambda obj: from_json(annotation, obj)
    assert annotation in _PLAIN, f"no Arrow type for {annotation!r}: add one to storage/arrow.py"
    return _PLAIN[annotation], _same, float if annotation is float else _same, _same


def _optional(way: Convert) -> Convert:
    return lambda value: None if value is None else way(value)


def _each(way: Convert, into: type) -> Convert:
    return into if way is _same else lambda values: into(way(value) for value in values)


@cache
def _fields(cls: type) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    made = []
    for field in fields(cls):
        hint = hints[field.name]
        default = field.default
        if default is MISSING and type(None) in typing.get_args(hint):
            default = None
        made.append(_Field(field.name, *_convert(hint), default=default))
    return tuple(made)


@cache
def schema(cls: type) -> pa.Schema:
    """The Arrow schema of a record class, its `schema_version` last."""
    return pa.schema([*((field.name, field.arrow) for field in _fields(cls)), ("schema_version", pa.int32())])


def _plain_row(record: Any) -> dict[str, Any]:
    return {field.name: field.to_row(getattr(record, field.name)) for field in _fields(type(record))}


def to_row(record: Any) -> dict[str, Any]:
    """One row for `pa.Table.from_pylist(rows, schema(cls))`. Json fields become strings, times microseconds."""
    row = _plain_row(record)
    row["schema_version"] = record.SCHEMA_VERSION
    return row


def from_row(cls: type[Record], row: dict[str, Any]) -> Record:
    """The record of one row, as `table.to_pylist()` or `frame.iter_rows(named=True)` give it."""
    return _build(cls, row, "from_row")


def from_json(cls: type[Record], obj: dict[str, Any]) -> Record:
    """The record of one parsed JSON object. ValueError where a field is missing that has no default."""
    return _build(cls, obj, "from_json")


def _build(cls: type[Record], source: dict[str, Any], way: str) -> Record:
    values = {}
    for field in _fields(cls):
        value = source.get(field.name, MISSING)
        if value is MISSING or (value is None and field.default not in (None, MISSING)):
            if field.default is MISSING:
                raise ValueError(f"{cls.__name__}: field {field.name} is missing. It has: {sorted(source)[:40]}")
            values[field.name] = field.default
        else:
            values[field.name] = getattr(field, way)(value)
    return cls(**values)


def to_json(record: Any) -> bytes:
    """A record, or anything that JSON can hold, as UTF-8 JSON without a line end."""
    return dumps(record)


def dumps(value: Any) -> bytes:
    """orjson, and for what it refuses (lone surrogates, integers over 64 bits) a slower way that mends the text."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return json.dumps(_mend(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _mend(value: Any) -> Any:
    """Text that is no UTF-8 gets U+FFFD in its place, and a number that is not finite becomes null."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_mend(str(key)): _mend(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mend(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _mend(getattr(value, field.name)) for field in fields(value)}
    return value
