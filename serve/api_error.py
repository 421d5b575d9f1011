"""Errors as the OpenAI API tells them: a status, a sentence, and the field that was wrong."""

from collections.abc import Mapping
from typing import Any

import orjson


class ApiError(Exception):
    """An answer that is an error, in OpenAI's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.kind = kind or _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The JSON."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})


_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 503: "overloaded_error"}


def wrong(param: str, message: str, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, message, param=param, code=code)


def type_name(value: Any) -> str:
    """A JSON value's type, for people."""
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return "null" if value is None else names[type(value)]
