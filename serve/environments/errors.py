"""The names under which errors cross to the holder of a lease, from a worker (`worker.py`) or over HTTP.

An exception itself does not cross: through Ray it would carry a traceback into an episode's reason.
"""

from serve.environments.leases import LeaseLost
from serve.environments.protocol import EnvironmentFailed
from serve.environments.sandbox import SandboxUnavailable
from serve.environments.tasks import TaskError

# the special before the general: the first that fits is the name
ERRORS: dict[str, type[Exception]] = {
    "lease_lost": LeaseLost,
    "sandbox_unavailable": SandboxUnavailable,
    "environment_failed": EnvironmentFailed,
    "invalid_task": TaskError,
    "invalid_request": ValueError,
}


def error_name(error: Exception) -> str:
    """The name under which an error crosses."""
    return next(name for name, kind in ERRORS.items() if isinstance(error, kind))
