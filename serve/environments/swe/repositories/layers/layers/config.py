"""Reading merged settings."""

import re
from collections.abc import Mapping
from typing import Any

from layers.errors import ConfigError, MissingKey
from layers.merge import merge

REFERENCE = re.compile(r"\$\{([^}]+)\}")
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
MISSING = object()


class Config:
    """Several layers, read as one."""

    def __init__(self, *layers: Mapping[str, Any]) -> None:
        self.values = merge(*layers)

    def get(self, path: str, default: Any = MISSING) -> Any:
        """The value at a dotted path, with its references replaced.

        Raises:
            MissingKey: the path leads nowhere and there is no default.
            ConfigError: the references go in a circle.
        """
        try:
            return self.resolve(self.find(path), (path,))
        except MissingKey as error:
            if default is MISSING or error.args[0] != path:
                raise
            return default

    def find(self, path: str) -> Any:
        """The value at a dotted path as it stands in the layers."""
        value: Any = self.values
        for part in path.split("."):
            if isinstance(value, Mapping) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            else:
                raise MissingKey(path)
        return value

    def resolve(self, value: Any, open_paths: tuple[str, ...]) -> Any:
        """A value with its references replaced."""
        if isinstance(value, Mapping):
            return {key: self.resolve(inner, open_paths) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.resolve(inner, open_paths) for inner in value]
        if not isinstance(value, str):
            return value
        if whole := REFERENCE.fullmatch(value):
            return self.follow(whole.group(1), open_paths)
        return REFERENCE.sub(lambda match: str(self.follow(match.group(1), open_paths)), value)

    def follow(self, path: str, open_paths: tuple[str, ...]) -> Any:
        """The value that a reference names."""
        if path in open_paths:
            raise ConfigError(f"a circle of references: {' -> '.join((*open_paths, path))}")
        return self.resolve(self.find(path), (*open_paths, path))

    def get_bool(self, path: str, default: Any = MISSING) -> bool:
        """The value as true or false.

        Raises:
            ConfigError: it is neither.
        """
        value = self.get(path, default)
        word = str(value).strip().lower()
        if word not in TRUE and word not in FALSE:
            raise ConfigError(f"{path} is {value!r}: true or false is needed")
        return word in TRUE

    def section(self, path: str) -> "Config":
        """The settings below a path, as settings of their own.

        Raises:
            ConfigError: the value there is no mapping.
        """
        value = self.get(path)
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path} is {value!r}: it has no settings below it")
        return Config(value)
