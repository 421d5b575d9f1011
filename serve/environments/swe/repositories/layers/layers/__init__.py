"""Settings from several layers."""

from layers.config import Config
from layers.environment import from_environment
from layers.errors import ConfigError, MissingKey
from layers.merge import merge

__all__ = ["Config", "ConfigError", "MissingKey", "from_environment", "merge"]
