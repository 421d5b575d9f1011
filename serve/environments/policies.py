"""Who acts in an episode: a task's script, a model behind an API, a person at the keyboard (`play.py`).

What it leaves out: learning from it. The gateway records what a model's answers were (their exchange ids are kept).
"""

from dataclasses import dataclass
from typing import Any

from serve.environments.catalog import track
from serve.environments.episode import PolicyAnswer, PolicyFailed, PolicyRequest
from serve.environments.prompts import Format, write_answer


@dataclass(frozen=True)
class ScriptedPolicy:
    """Plays the entries of a task's `expert` or `wrong`, through the same format that a model would use."""

    entries: tuple[Any, ...]
    form: Format = "tools"

    async def act(self, request: PolicyRequest) -> PolicyAnswer:
        """The next entry.

        Raises:
            PolicyFailed: the script is at its end and the episode is not.
        """
        if request.index >= len(self.entries):
            raise PolicyFailed(f"the script of {len(self.entries)} steps is at its end, the episode is not")
        module = track(request.task.track)
        action = module.expert_action(self.entries[request.index], request.observation)
        return PolicyAnswer(message=write_answer(module, action, self.form))


def _answer(completion: Any) -> Any:
    """The assistant message, or None where this is no completion: the client parses whatever comes."""
    choices = getattr(completion, "choices", None)
    return getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None


class ModelPolicy:
    """Any OpenAI-compatible model; our own gateway names the exchange of each answer.

    Its requests are `side` turns there: recorded, and left out of what is learned from live traffic. What an episode
    teaches comes from its outcome.
    """

    def __init__(
        self, base_url: str, api_key: str, model: str, *, temperature: float = 1.0, max_tokens: int = 512,
        timeout_s: float = 600.0,
    ) -> None:  # fmt: skip
        from openai import AsyncOpenAI

        self._client = AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=timeout_s, max_retries=2)
        self._asked = {"model": model, "temperature": temperature, "max_tokens": max_tokens}

    async def act(self, request: PolicyRequest) -> PolicyAnswer:
        """Ask it. The session is the episode: its steps are one conversation for the gateway.

        Raises:
            PolicyFailed: no answer came.
        """
        from openai import OpenAIError

        tools = {"tools": request.tools} if request.tools else {}
        headers = {"X-Session-Id": request.episode_id, "X-Turn-Type": "side"}
        try:
            response = await self._client.chat.completions.with_raw_response.create(
                messages=request.messages, extra_headers=headers, **self._asked, **tools
            )
            answer = _answer(response.parse())
        except (OpenAIError, ValueError) as error:
            raise PolicyFailed(f"{type(error).__name__}: {error}") from error
        if answer is None:
            kind = response.headers.get("content-type", "no content type")
            raise PolicyFailed(
                f"{self._client.base_url} answered with no chat completion ({kind}): does the base URL end in /v1?"
            )
        message = {"role": "assistant", "content": answer.content or ""}
        if answer.tool_calls:
            message["tool_calls"] = [call.model_dump(exclude_none=True) for call in answer.tool_calls]
        return PolicyAnswer(message=message, exchange_id=response.headers.get("x-exchange-id"))

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()
