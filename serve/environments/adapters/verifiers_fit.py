"""What of `verifiers` (0.4, its `verifiers.v1`) is used, and which of its tasks can't be played here, with the reason.

What it does: `VerifiersLibrary`, the only place that imports it; `folded`, a row's prompt as one text; `unfit`.
What it leaves out: judges that code of a reward makes for itself can't be seen from outside. One that has no model to
ask raises when it scores, and the episode fails.
"""

import importlib
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

NO_PROMPT = "Answer what the user says."
INSTALL = (
    "verifiers is not installed: it takes a virtual environment of its own, with 'verifiers==0.4.0', since it wants "
    "another version of openai; run this environment there"
)


class VerifiersLibrary:
    """The library, imported when this is made.

    Raises:
        ValueError: it is not installed.
    """

    def __init__(self) -> None:
        try:
            self.v1 = importlib.import_module("verifiers.v1")
        except ImportError as error:
            raise ValueError(f"{INSTALL} ({error})") from error

    def state_type(self, kind: type) -> type:
        """The State that a task or a toolset is declared with."""
        return importlib.import_module("verifiers.v1.state").state_cls(kind)

    @asynccontextmanager
    async def tool_client(self, toolset: Any) -> AsyncIterator[Any]:
        """A client of the toolset's server, within this process."""
        server = importlib.import_module("mcp.server.mcpserver").MCPServer(
            toolset.server_name or type(toolset).__name__
        )
        toolset.register(server)
        async with importlib.import_module("mcp").Client(server) as client:
            yield client


def folded(data: Any) -> str:
    """A row's system prompt and prompt as one text, as `verifiers` folds them for programs without a system prompt.

    Raises:
        ValueError: pictures, or a conversation that has begun already.
    """
    prompt = data.prompt
    if prompt is None:
        return data.system_prompt or NO_PROMPT
    if isinstance(prompt, str):
        return "\n\n".join(part for part in (data.system_prompt, prompt) if part)
    roles = [message.role for message in prompt]
    if roles not in (["user"], ["system", "user"]):
        raise ValueError(f"its prompt has the roles {', '.join(roles)}: one user message, with a system one, is needed")
    return "\n\n".join(part for part in (data.system_prompt, *(text_of(one.content) for one in prompt)) if part)


def text_of(content: Any) -> str:
    """The text of a message's content.

    Raises:
        ValueError: it holds a picture.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if strange := next((part.type for part in content if part.type != "text"), None):
        raise ValueError(f"a message holds {strange}: only text can be played")
    return "\n".join(part.text for part in content)


def unfit(task: Any, toolsets: list[Any], library: Any) -> str | None:
    """Why this task of `verifiers` can't be played from outside; None where it can."""
    data, config = task.data, task.config
    if task.NEEDS_CONTAINER or data.image or data.workdir or data.skills or data.artifacts or data.agent_user:
        return "it needs a container (image, workdir, skills, artifacts): its runtimes are not driven from here"
    if config.judges or any(isinstance(value, library.v1.JudgeConfig) for value in vars(config).values()):
        return "a judge scores it, and a judge needs a model to ask: score it with rewards of its own"
    for name in ("setup", "finalize"):
        if getattr(type(task), name) is not getattr(library.v1.Task, name) and needs_runtime(getattr(task, name)):
            return f"its {name} takes a runtime, and there is none here"
    if strange := [fn.__name__ for fn in task.hooks("reward") if needs_runtime(fn)]:
        return f"its reward {strange[0]} takes a runtime, and there is none here"
    if task.hooks("stop") or any(hasattr(fn, "intercept") for kind in type(task).__mro__ for fn in vars(kind).values()):
        return "it has @stop or @intercept hooks, which only its own rollout loop calls"
    for toolset in toolsets:
        placed = toolset.config
        if getattr(placed, "colocated", False) or placed.url or placed.runtime.type != "subprocess":
            return f"its tools {type(toolset).__name__} run elsewhere (url, colocated or {placed.runtime.type})"
    try:
        folded(data)
    except ValueError as error:
        return str(error)
    return None


def needs_runtime(function: Any) -> bool:
    """Whether it can't be called without one of their runtimes."""
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty
