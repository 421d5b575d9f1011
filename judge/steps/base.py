"""The seam of step judging: what a judge is given, what it promises, its settings, and how one is made.

What it does: `StepInput`, `StepJudge`, `StepJudgeSettings`; `make_step_judge(settings)` picks the judge that they name.
What it leaves out: the judges (`rules.py`, `llm.py`, `verifiable.py`) and the facts' vocabulary (`facts.py`).
"""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from judge.base import JudgeInput, JudgeSettings
from judge.steps.prompts import RenderLimits
from storage.records import NextState, Verdict

Track = Literal["terminal", "tool_call", "swe", "gui"]
TRACKS: tuple[Track, ...] = get_args(Track)
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What a GUI showed."""

    tree: str = ""  # the accessibility tree, one element a line
    image: bytes | None = None  # a PNG file

    def __post_init__(self) -> None:
        if self.image is not None and not self.image.startswith(_PNG):
            raise ValueError(f"a screen's image begins with {self.image[:8]!r}: the bytes of a PNG file are needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """One step of an episode, what came before it and what it led to."""

    track: Track
    instruction: str  # the task, as the policy was told it
    index: int  # of this step, from 0
    action: str  # this step's reasoning and calls; `action_text` writes them in the form that the rules read best
    result: str  # its next state, as the policy sees it
    history: tuple[tuple[str, str], ...] = ()  # (action, result) of the earlier steps, the oldest first
    before: Screen | None = None  # GUI: the screen that the step began on
    after: Screen | None = None  # GUI: the screen that it led to
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON; `facts.py` lists what is understood
    exchange_id: str | None = None  # the exchange whose answer this step is
    next_state_id: str | None = None

    def __post_init__(self) -> None:
        if self.track not in TRACKS:
            raise ValueError(f"step of track {self.track!r}: it must be one of {', '.join(TRACKS)}")
        if self.index < 0 or len(self.history) > self.index:
            raise ValueError(
                f"step {self.index} with {len(self.history)} earlier steps: the index counts from 0, and at most that "
                "many steps came before"
            )

    def as_turn(self) -> JudgeInput:
        """The same as a turn, which is what verdicts are made of; an id that is not known is empty there."""
        state = NextState(
            next_state_id=self.next_state_id or "",
            exchange_id=self.exchange_id or "",
            role="environment",
            content=self.result,
            source_exchange_id=None,
            arrived_at=time.time(),
        )
        return JudgeInput(
            exchange_id=self.exchange_id or "", question=self.instruction, answer=self.action, next_state=state
        )


def action_text(reasoning: str, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """An action as text: the reasoning, then each call, its name and arguments, as JSON between <tool_call> tags."""
    blocks = [
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': dict(arguments)}, ensure_ascii=False)}\n</tool_call>"
        for name, arguments in calls
    ]
    return "\n".join(part for part in (reasoning.strip(), *blocks) if part)


class StepJudge(Protocol):
    """Anything that turns a step into a verdict."""

    name: str  # name and version, as "step-rules/1"

    async def judge(self, step: StepInput) -> Verdict:
        """Never raises because a judge failed: the verdict's `error` says so, and its reward is None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepJudgeSettings(JudgeSettings):
    """Which step judge, and how it is asked: the settings of the turns' judge, and what differs for steps."""

    directive: bool = False  # `llm` asks for hints too, at twice the votes; the hints of `rules` cost nothing
    votes: int = 1  # m of every track but gui
    gui_votes: int = 3  # m of gui
    images: bool = False  # the judge model takes pictures; else it reads the accessibility trees
    max_chars: int = 8_000  # of instruction, action, result and each screen; the middle is cut
    history_steps: int = 8  # the last ones are shown, the older ones counted
    history_chars: int = 1_000  # of each action and each result of the history

    def __post_init__(self) -> None:
        JudgeSettings.__post_init__(self)
        for name, least in {"gui_votes": 1, "history_steps": 0, "history_chars": 100}.items():
            if getattr(self, name) < least:
                raise ValueError(f"judge setting {name} is {getattr(self, name)}: it must be at least {least}")

    def votes_for(self, track: Track) -> int:
        """m, the independent votes on one step."""
        return self.gui_votes if track == "gui" else self.votes

    @property
    def limits(self) -> RenderLimits:
        """How much of a step the judge model is shown."""
        return RenderLimits(
            max_chars=self.max_chars, history_steps=self.history_steps, history_chars=self.history_chars
        )


def make_step_judge(settings: StepJudgeSettings) -> StepJudge:
    """The judge that the settings name. Heavy imports happen here, for the one that is used."""
    if settings.judge == "llm":
        from judge.steps.llm import StepLlmJudge

        return StepLlmJudge(settings)
    if settings.judge == "verifiable":
        from judge.steps.verifiable import StepVerifiableJudge

        return StepVerifiableJudge()
    from judge.steps.rules import StepRulesJudge

    return StepRulesJudge()
