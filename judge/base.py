"""The seam of judging: what a judge is given, what it promises, its settings, and how one is made.

What it does: `make_judge(settings)` picks the judge that the settings name.
What it leaves out: the judges themselves (`rules.py`, `llm.py`, `verifiable.py`) and counting votes (`votes.py`).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, Protocol

from storage.records import NextState, Verdict

JudgeName = Literal["rules", "llm", "verifiable"]
HintChoice = Literal["longest", "overlap"]
JUDGES: tuple[JudgeName, ...] = ("rules", "llm", "verifiable")
HINT_CHOICES: tuple[HintChoice, ...] = ("longest", "overlap")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeInput:
    """One answer and what followed it."""

    exchange_id: str
    question: str  # the conversation before the answer, or its last question, as text
    answer: str  # the answer as the client saw it
    next_state: NextState  # what followed
    expected: str | None = None  # the known right answer; only `verifiable` looks at it


class Judge(Protocol):
    """Anything that turns an answer and its next state into a verdict."""

    name: str  # name and version, as "rules/1"

    async def judge(self, item: JudgeInput) -> Verdict:
        """Never raises because a judge failed: the verdict's `error` says so, and its reward is None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """Which judge, and how it is asked. Everything below `hint_choice` concerns `llm` only."""

    judge: JudgeName = "rules"
    hint_choice: HintChoice = "longest"
    directive: bool = True  # ask for hints too
    base_url: str = ""  # an OpenAI-compatible endpoint, as "http://127.0.0.1:8000/v1"
    api_key_env: str = "CLAWRL_JUDGE_API_KEY"  # the environment variable that holds the key: secrets stay out of TOML
    model: str = ""  # the judge model's name at that endpoint
    votes: int = 1  # m: independent votes per verdict (3 for GUI)
    temperature: float = 0.6
    max_tokens: int = 4096  # new tokens of an evaluative vote
    max_hint_tokens: int = 8192  # new tokens of a directive vote
    timeout_s: float = 120.0  # one vote, retries included
    retries: int = 3  # further tries of one vote after a failed request
    backoff_s: float = 0.5  # before the first retry; doubles each time
    concurrency: int = 16  # requests in flight at once
    max_chars: int = 24_000  # of question, answer and next state each; the middle is cut

    def __post_init__(self) -> None:
        _one_of("judge", self.judge, JUDGES)
        _one_of("hint_choice", self.hint_choice, HINT_CHOICES)
        if self.hint_choice == "overlap":
            raise ValueError(
                "judge setting hint_choice is 'overlap': it needs the policy's distributions, which nothing computes "
                "for the judge yet; use 'longest'"
            )
        if self.judge == "llm" and not (self.base_url and self.model):
            raise ValueError(
                f"judge 'llm' needs base_url and model, got base_url={self.base_url!r}, model={self.model!r}: "
                "set both under [judge], or use judge = 'rules'"
            )
        bounds = {"votes": 1, "max_tokens": 1, "max_hint_tokens": 1, "retries": 0, "concurrency": 1, "max_chars": 200}
        for name, least in bounds.items():
            if getattr(self, name) < least:
                raise ValueError(f"judge setting {name} is {getattr(self, name)}: it must be at least {least}")
        if not 0 <= self.temperature <= 2:
            raise ValueError(f"judge setting temperature is {self.temperature}: it must lie between 0 and 2")
        if self.timeout_s <= 0 or self.backoff_s < 0:
            raise ValueError(
                f"judge settings timeout_s={self.timeout_s} and backoff_s={self.backoff_s}: "
                "the first must be above 0, the second not below"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> "JudgeSettings":
        """From a TOML table; an unknown key is refused with the list of known ones."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"unknown judge setting {unknown[0]!r}: known ones are {', '.join(sorted(known))}")
        return cls(**values)  # type: ignore[arg-type]

    @property
    def api_key(self) -> str:
        """The endpoint's key, from the environment; a loopback server takes any."""
        return os.environ.get(self.api_key_env, "none")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"judge setting {name} is {value!r}: it must be one of {', '.join(allowed)}")


def make_judge(settings: JudgeSettings) -> Judge:
    """The judge that the settings name. Heavy imports happen here, for the one that is used."""
    if settings.judge == "llm":
        from judge.llm import LlmJudge

        return LlmJudge(settings)
    if settings.judge == "verifiable":
        from judge.verifiable import VerifiableJudge

        return VerifiableJudge()
    from judge.rules import RulesJudge

    return RulesJudge()
