"""Read one TOML file and environment variables into frozen dataclasses, refusing what nobody would read.

    load(Settings, home.config)      # CLAWRL_POOL__BATCH_SIZE=8 overrides [pool] batch_size

What it leaves out: which settings there are (each class lies beside its user; `infra/settings.py` puts them together).
"""

import dataclasses
import difflib
import os
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
PREFIX = "CLAWRL_"
_OWN = ("CLAWRL_HOME", "CLAWRL_MODELS", "CLAWRL_INSTANCE", "CLAWRL_API_KEY", "CLAWRL_JUDGE_API_KEY")


def load(cls: type[T], path: Path, environ: typing.Mapping[str, str] = os.environ) -> T:
    """Settings of `path` (none is fine), overridden by `environ`. Raises ValueError that names the key."""
    try:
        raw = tomllib.loads(path.read_text()) if path.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise ValueError(f"{path}: not valid TOML: {fault}") from fault
    for name, value in environ.items():
        if name.startswith(PREFIX) and name not in _OWN:
            _set(raw, name.removeprefix(PREFIX).lower().split("__"), value, name)
    return build(cls, raw, str(path))


def build(cls: type[T], raw: dict[str, Any], where: str, at: str = "") -> T:
    """A settings object from plain data. `at` is the section, for messages."""
    if not isinstance(raw, dict):
        raise ValueError(f"{where}: [{at}] must be a table, got {raw!r}")
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    values = {}
    for key, value in raw.items():
        label = f"{at}.{key}" if at else key
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(sorted(names))}"
            raise ValueError(f"{where}: unknown setting {label!r}; {hint}")
        values[key] = _convert(hints[key], value, where, label)
    return cls(**values)


def _convert(kind: Any, value: Any, where: str, label: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return build(kind, value, where, label)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None or value == "":
            return None
        inner = next(argument for argument in arguments if argument is not type(None))
        return _convert(inner, value, where, label)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{where}: {label} = {value!r} is not one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value
        return tuple(_convert(arguments[0], item, where, label) for item in items)
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: {label} must be a table, got {value!r}")
        return {key: _convert(arguments[1], item, where, f"{label}.{key}") for key, item in value.items()}
    return _scalar(kind, value, where, label)


def _scalar(kind: Any, value: Any, where: str, label: str) -> Any:
    wrong = ValueError(f"{where}: {label} = {value!r} must be {getattr(kind, '__name__', kind)}")
    if kind is bool:
        known = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
        if isinstance(value, bool):
            return value
        if str(value).lower() not in known:
            raise wrong
        return known[str(value).lower()]
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Path)):
        raise wrong
    try:
        if kind is int and isinstance(value, float) and value != int(value):
            raise wrong
        return Path(value).expanduser() if kind is Path else kind(value)
    except (TypeError, ValueError) as fault:
        raise wrong from fault


def _set(raw: dict[str, Any], keys: list[str], value: str, name: str) -> None:
    for key in keys[:-1]:
        raw = raw.setdefault(key, {})
        if not isinstance(raw, dict):
            raise ValueError(f"{name}: {key!r} is not a section")
    raw[keys[-1]] = value
