"""The sandbox that everything an agent does runs in: no network, none of the host's files. README.md says more."""

from serve.environments.sandbox.bubblewrap import SandboxUnavailable, require, walls
from serve.environments.sandbox.sandbox import CommandResult, PythonResult, Sandbox, SandboxDied
from serve.environments.sandbox.staging import PACKAGE_NAME

__all__ = [
    "PACKAGE_NAME", "CommandResult", "PythonResult", "Sandbox", "SandboxDied", "SandboxUnavailable", "require", "walls",
]  # fmt: skip
