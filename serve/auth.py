"""API keys: who is asking.

What it does: finds the tenant of an `Authorization: Bearer` key (or `x-api-key`, as Anthropic's clients send it), in
a time that does not tell how much of a key was right. What it leaves out: making and storing keys (`infra/`).
Keys are kept as hashes and never logged.
"""

import hashlib
import hmac
from collections.abc import Mapping

from serve.api_error import ApiError


class Keys:
    """The keys of one gateway. With none, everyone is the tenant `default`: only for tests and loopback."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        """`tenants`: key → tenant."""
        self._tenants = {_digest(key): tenant for key, tenant in tenants.items()}

    def __repr__(self) -> str:
        return f"Keys({len(self._tenants)} keys)"

    def tenant(self, headers: Mapping[str, str]) -> str:
        """The tenant of a request; an ApiError 401 where the key is missing or wrong."""
        if not self._tenants:
            return "default"
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            key = headers.get("x-api-key", "")
        if not key.strip():
            raise ApiError(
                401,
                "No API key was given. Send it in a header: Authorization: Bearer YOUR_KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        wanted, found = _digest(key.strip()), None
        for known, tenant in self._tenants.items():  # all of them, whichever fits
            if hmac.compare_digest(known, wanted):
                found = tenant
        if found is None:
            raise ApiError(
                401, "This API key is not known.", code="invalid_api_key", headers={"www-authenticate": "Bearer"}
            )
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
