"""What a policy is shown, and how its answer becomes an action, for models that call tools and those that can't.

What it does: the first messages of an episode, the messages that carry an observation, `read_answer` (an assistant
message to an `Action`) and `write_answer` (the reverse, for scripted policies).
What it leaves out: the prompts' words and the plain format, which are each track's own; how much history is kept
(`context.py`).
"""

import base64
import json
from typing import Any, Literal

from serve.environments.catalog import TrackModule
from serve.environments.protocol import Action, Call, Observation
from serve.environments.tasks import Task

Format = Literal["tools", "plain"]
Message = dict[str, Any]

JOINED = "(see the last result)"  # where one answer made several calls: their results are told together


def first_messages(module: TrackModule, task: Task, observation: Observation, form: Format) -> list[Message]:
    """The system prompt, for plain answers an example, and the task with what is seen first."""
    system = module.SYSTEM if form == "tools" else module.SYSTEM_PLAIN
    example = module.EXAMPLE_PLAIN if form == "plain" else ()
    text = task.instruction if not observation.text else f"{task.instruction}\n\n{observation.text}"
    return [
        {"role": "system", "content": system},
        *({"role": ("user", "assistant")[number % 2], "content": said} for number, said in enumerate(example)),
        {"role": "user", "content": _content(text, observation)},
    ]


def result_messages(answer: Message, observation: Observation, form: Format) -> list[Message]:
    """What carries an observation back: tool messages where tools were called, else a user message."""
    calls = tool_calls(answer)
    if form == "plain" or not calls:
        return [{"role": "user", "content": _content(observation.text, observation)}]
    texts = [JOINED] * (len(calls) - 1) + [observation.text]
    results: list[Message] = [
        {"role": "tool", "tool_call_id": _id(call, number), "content": text}
        for number, (call, text) in enumerate(zip(calls, texts, strict=True), 1)
    ]
    if observation.images:  # a tool message holds text only
        results.append({"role": "user", "content": _content("The screen:", observation)})
    return results


def read_answer(module: TrackModule, task: Task, answer: Message, form: Format) -> Action:
    """What an assistant message asks for. Never raises: what can't be read is the action's fault, in words.

    A name that no tool has is the environment's to refuse: it still carries out the other calls of the answer.
    """
    text = text_of(answer)
    if form == "plain":
        return module.parse_plain(text)
    calls = []
    for number, call in enumerate(tool_calls(answer), 1):
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        name = function.get("name")
        if not isinstance(name, str):
            known = ", ".join(tool["function"]["name"] for tool in module.tools(task))
            return Action(text=text, fault=f"call {number} has no name of a tool; there are {known}")
        arguments, fault = _arguments(name, function.get("arguments"))
        if fault is not None:
            return Action(text=text, fault=f"call {number}: {fault}")
        calls.append(Call(name=name, arguments=arguments, call_id=_id(call, number)))
    return Action(text=text, calls=tuple(calls))


def text_of(answer: Message) -> str:
    """The words of an assistant message; those of its parts, where it has parts."""
    content = answer.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def tool_calls(answer: Message) -> list[dict[str, Any]]:
    """Its calls; what is no object counts as a call without anything."""
    given = answer.get("tool_calls")
    return [call if isinstance(call, dict) else {} for call in given] if isinstance(given, list) else []


def _id(call: dict[str, Any], number: int) -> str:
    given = call.get("id")
    return given if isinstance(given, str) and given else f"call_{number}"


def _arguments(name: str, given: Any) -> tuple[dict[str, Any], str | None]:
    if isinstance(given, dict):  # some engines hand them out parsed
        return given, None
    try:
        arguments = json.loads(given or "{}")
    except (TypeError, ValueError) as error:
        return {}, f"the arguments of {name[:80]} are not JSON: {error}"
    except RecursionError:
        return {}, f"the arguments of {name[:80]} are nested too deeply"
    if not isinstance(arguments, dict):
        shown = repr(given)[:80]
        return {}, f'the arguments of {name[:80]} must be a JSON object, as {{"name": value}}; they are {shown}'
    return arguments, None


def write_answer(module: TrackModule, action: Action, form: Format) -> Message:
    """The assistant message that `read_answer` reads back as this action."""
    if form == "plain":
        return {"role": "assistant", "content": module.plain_text(action)}
    message: Message = {"role": "assistant", "content": action.text}
    if action.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id or f"call_{number}", "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for number, call in enumerate(action.calls, 1)
        ]  # fmt: skip
    return message


def _content(text: str, observation: Observation) -> str | list[dict[str, Any]]:
    if not observation.images:
        return text
    pictures = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(image).decode()}}
        for image in observation.images
    ]
    return [{"type": "text", "text": text}, *pictures]
