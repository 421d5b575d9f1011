"""The agent's seat in an environment of `verifiers`, with whoever calls us in it: `Seat`.

What it does: a `verifiers` environment asks its agent for answers (`run`, `interaction` and `turn`); the seat passes
each question on over a `Line`, takes the answer, runs tool calls in this process and keeps the trace, which the
task's own rewards then score.
What it leaves out: models, harnesses, runtimes and interception, which is what its own agents are made of; a second
run in one episode. All of this runs in the loop of one `EpisodeThread`.
"""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from serve.environments.adapters.verifiers_fit import folded, text_of, unfit
from serve.environments.protocol import Action, Call, EnvironmentFailed
from serve.environments.tasks import TaskError


class Line:
    """Between the environment, which asks, and whoever answers."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[str | Exception | None] = asyncio.Queue()  # asked; None: over; or how it failed
        self.answers: asyncio.Queue[Action | None] = asyncio.Queue()  # None: there will be no more

    async def ask(self, seen: str) -> Action | None:
        """Show this, and wait for the answer."""
        self.events.put_nowait(seen)
        return await self.answers.get()


class Conversation:
    """One run of a task: what was said, in a trace of theirs. Also what they call an interaction."""

    def __init__(self, task: Any, spec: Any, line: Line, library: Any, instruction: str) -> None:
        v1 = self._v1 = library.v1
        self._task, self._line, self._library = task, line, library
        self.trace = v1.Trace(
            task=v1.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            agent=v1.AgentInfo(config=spec), state=library.state_type(type(task))(),
        )  # fmt: skip
        self.tools: dict[str, tuple[Any, Any]] = {}  # name -> its client, its declaration
        self._stack = AsyncExitStack()
        self._unseen = [folded(task.data)] if folded(task.data) != instruction else []
        self._begun = self._stopped = self._told = False

    async def open(self, toolsets: list[Any]) -> None:
        """Set the task up and connect its tools."""
        await _invoke(self._task.setup, self._v1.Task.setup, self.trace)
        for toolset, own in toolsets:
            _share_state(toolset, self.trace.state, self._library)
            await toolset.setup()
            if own:
                await toolset.setup_task(self._task.data)
            client = await self._stack.enter_async_context(self._library.tool_client(toolset))
            for tool in (await client.list_tools()).tools:
                name = f"{toolset.server_name}_{tool.name}" if toolset.server_name else tool.name
                if name in self.tools:
                    raise TaskError(f"two of its tools are called {name!r}")
                self.tools[name] = (client, tool)

    async def turn(self, message: Any = None) -> Any:
        """One turn of the user and what the agent makes of it: their Segment."""
        prompted = not self._begun and self._task.data.prompt is not None
        if prompted != (message is None):
            raise ValueError("a task with a prompt begins with a bare turn(); every other turn needs a message")
        if self._stopped:
            if self._told:
                raise RuntimeError("the conversation is over")
            self._told = True
            return self._v1.Segment(messages=[], terminated=True)
        if not self._begun:
            self._begin()
        said = [message] if isinstance(message, str) else [_content(one) for one in message or ()]
        for text in said:
            self._add(self._v1.UserMessage(content=text))
        messages = await self._answers("\n\n".join([*self._unseen, *said]))
        self._unseen, self._told = [], not messages
        return self._v1.Segment(messages=messages, terminated=not messages)

    def _begin(self) -> None:
        self._begun, data = True, self._task.data
        if data.system_prompt:
            self._add(self._v1.SystemMessage(content=data.system_prompt))
        for message in (
            [self._v1.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt or ()
        ):
            self._add(message)

    async def _answers(self, seen: str) -> list[Any]:
        """The agent's messages and the results of its tools, until it calls none or says no more."""
        first = len(self.trace.nodes)
        while (action := await self._line.ask(seen)) is not None:
            calls = [
                self._v1.ToolCall(id=call.call_id or f"call_{len(self.trace.nodes)}_{place}", name=call.name,
                                  arguments=json.dumps(call.arguments))
                for place, call in enumerate(action.calls)
            ]  # fmt: skip
            self._add(self._v1.AssistantMessage(content=action.text, tool_calls=calls or None), sampled=True)
            if not calls:
                break
            results = [await self._call(call) for call in action.calls]
            for call, result in zip(calls, results, strict=True):
                self._add(self._v1.ToolMessage(tool_call_id=call.id, name=call.name, content=result))
            seen = "\n\n".join(results)
        self._stopped = action is None
        return [node.message for node in self.trace.nodes[first:]]

    async def _call(self, call: Call) -> str:
        client, tool = self.tools[call.name]
        result = await client.call_tool(tool.name, call.arguments)
        return "\n".join(part.text if part.type == "text" else f"[{part.type} left out]" for part in result.content)

    def _add(self, message: Any, sampled: bool = False) -> None:
        nodes = self.trace.nodes
        nodes.append(self._v1.MessageNode(parent=len(nodes) - 1 if nodes else None, message=message, sampled=sampled))

    async def finish(self) -> None:
        """Let the task finalize and score."""
        self.trace.stop("max_turns" if self._stopped else "agent_completed")
        await self._stack.aclose()
        await _invoke(self._task.finalize, self._v1.Task.finalize, self.trace)
        await self._task.score(self.trace, None)
        self.trace.ok = True

    async def abandon(self) -> None:
        """End the tools, and nothing else."""
        await self._stack.aclose()


class Seat:
    """What their environment takes for its one agent."""

    trainable = True

    def __init__(self, spec: Any, line: Line, library: Any, taskset: Any, instruction: str) -> None:
        self.config = spec
        self._line, self._library, self._taskset, self._instruction = line, library, taskset, instruction
        self.conversation: Conversation | None = None

    async def run(self, task: Any, **borrowed: Any) -> Any:
        """Play a task with a prompt in one turn; its trace."""
        async with self.interaction(task, **borrowed) as conversation:
            await conversation.turn()
        return conversation.trace

    @asynccontextmanager
    async def interaction(self, task: Any, **borrowed: Any) -> AsyncIterator[Conversation]:
        """Play a task turn by turn; it is scored in the end."""
        if self.conversation is not None:
            raise EnvironmentFailed("the environment runs its agent more than once: only one run can be driven")
        if given := [name for name, value in borrowed.items() if value and name != "on_trace"]:
            raise EnvironmentFailed(
                f"the environment lends its agent {', '.join(given)}, which can't be used from here"
            )
        own = list(type(task).toolsets(task.config))
        shared = list(type(self._taskset).toolsets(self._taskset.config))
        if reason := unfit(task, [*own, *shared], self._library):
            raise TaskError(f"the task can't be played from outside verifiers: {reason}")
        conversation = Conversation(task, self.config, self._line, self._library, self._instruction)
        self.conversation = conversation
        if callable(watch := borrowed.get("on_trace")):
            watch(conversation.trace)
        try:
            await conversation.open([*((one, True) for one in own), *((one, False) for one in shared)])
            yield conversation
            await conversation.finish()
        finally:
            await conversation.abandon()

    def provision(self, *_: Any, **__: Any) -> Any:
        """Refused."""
        raise EnvironmentFailed("the environment wants a runtime for its agent (provision), and there is none here")


def _content(message: Any) -> str:
    role, content = (
        (message.get("role"), message.get("content")) if isinstance(message, dict) else (message.role, message.content)
    )
    if role != "user" or (isinstance(content, list) and any(isinstance(part, dict) for part in content)):
        raise EnvironmentFailed(f"a turn holds a message of role {role} or in parts: only the user's text is passed on")
    return text_of(content)


def _share_state(toolset: Any, state: Any, library: Any) -> None:
    """Let tools work on the trace's state; over their own HTTP channel it would be copied to and fro."""
    kind, wanted = type(toolset), library.state_type(type(toolset))
    if not isinstance(state, wanted):
        raise TaskError(f"tools {kind.__name__} keep a {wanted.__name__}, and the task a {type(state).__name__}")
    toolset.__class__ = type(kind.__name__, (kind,), {"state": state, "__module__": kind.__module__})


async def _invoke(hook: Callable[..., Any], default: Any, trace: Any) -> None:
    if getattr(hook, "__func__", None) is not default:
        result = hook(**({"trace": trace} if "trace" in inspect.signature(hook).parameters else {}))
        if inspect.isawaitable(result):
            await result
