"""Errors of settings."""


class ConfigError(Exception):
    """Settings that can't be used."""


class MissingKey(ConfigError, KeyError):
    """A path that leads nowhere."""

    def __str__(self) -> str:
        return f"there is no setting {self.args[0]!r}"
