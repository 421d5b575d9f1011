"""The student: she asks word problems, reads the answers as they stream, and says what she thinks of them.

What it does: `Student.run` holds several conversations at once over the official OpenAI SDK; her reply to an answer is
its next state. `evaluate` scores first answers to unseen problems, marked as side turns so that they never train.
What it leaves out: knowing that the model learns. She is a client like any other.

Run it: `python -m flows.people --base-url http://127.0.0.1:8000/v1 --api-key KEY`.
"""

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import openai

from flows.people.problems import Problem, load_problems
from flows.people.replies import reply_to
from flows.people.rubric import CRITERIA, RubricScore, score

Message = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentSettings:
    """How she talks."""

    model: str = "smollm2-135m-instruct"
    sessions: int = 4  # conversations at once
    problems_per_session: int = 1  # 1: every answer that she judges is a first answer, as in `evaluate`
    temperature: float = 0.7
    max_tokens: int = 128  # of an answer to a problem
    reply_max_tokens: int = 8  # of what the model says to her reply; nobody reads it
    seed: int = 0
    give_up_after: int = 8  # failed conversations in a row

    def __post_init__(self) -> None:
        least = ("sessions", "problems_per_session", "max_tokens", "reply_max_tokens", "give_up_after")
        for name in least:
            if getattr(self, name) < 1:
                raise ValueError(f"student setting {name} is {getattr(self, name)}: it must be at least 1")
        if not 0 <= self.temperature <= 2:
            raise ValueError(f"student setting temperature is {self.temperature}: it must lie between 0 and 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One streamed answer."""

    text: str
    version: int | None  # x-weight-version, where the server sends it
    exchange_id: str | None  # x-exchange-id


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReport:
    """One problem, answered and replied to: what a progress callback gets."""

    number: int  # counted from 1
    problem: Problem
    answer: Answer
    score: RubricScore
    reply: str


@dataclass(slots=True, kw_only=True)
class RunReport:
    """What a run came to."""

    turns: int = 0
    content: int = 0  # turns that she praised
    total: float = 0.0  # sum of rubric totals
    failed: int = 0  # conversations that ended with an error
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def mean(self) -> float:
        """Mean rubric total of the turns, 0 to 1."""
        return self.total / self.turns if self.turns else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores of first answers to unseen problems."""

    answers: int
    mean: float  # of the rubric totals, 0 to 1
    content: float  # share of answers with nothing to say against
    right: float  # share that ends on the right number: watched, not rewarded
    words: float  # mean length
    kept: dict[str, float]  # criterion -> share of answers that keep it
    versions: tuple[int, ...]  # the weight versions that answered
    texts: tuple[str, ...]  # the answers, in the order of the problems


async def ask(
    client: openai.AsyncOpenAI,
    messages: Sequence[Message],
    *,
    model: str,
    temperature: float,
    max_tokens: int,
    headers: dict[str, str],
    seed: int | None = None,
) -> Answer:
    """One streamed answer, read to its end."""
    raw = await client.chat.completions.with_raw_response.create(
        model=model,
        messages=list(messages),  # type: ignore[arg-type]
        temperature=temperature,
        max_tokens=max_tokens,
        stream=True,
        extra_headers=headers,
        **({} if seed is None else {"seed": seed}),
    )
    pieces: list[str] = []
    async for chunk in raw.parse():
        if chunk.choices and (piece := chunk.choices[0].delta.content):
            pieces.append(piece)
    version = raw.headers.get("x-weight-version", "")
    return Answer(
        text="".join(pieces),
        version=int(version) if version.isdigit() else None,
        exchange_id=raw.headers.get("x-exchange-id"),
    )


class Student:
    """Talks until told to stop. `on_turn` is called after each reply that she sent."""

    def __init__(
        self,
        client: openai.AsyncOpenAI,
        settings: StudentSettings | None = None,
        on_turn: Callable[[TurnReport], None] | None = None,
    ) -> None:
        self.settings = settings or StudentSettings()
        self._client = client
        self._on_turn = on_turn
        self._problems = load_problems("practice")
        self._asked = 0
        self._failed_in_a_row = 0

    async def run(self, turns: int, stop: asyncio.Event | None = None) -> RunReport:
        """Asks `turns` problems in all (fewer where `stop` is set); raises the error where every conversation fails."""
        report, stop = RunReport(), stop or asyncio.Event()
        await asyncio.gather(*(self._talk(turns, report, stop) for _ in range(self.settings.sessions)))
        return report

    async def _talk(self, turns: int, report: RunReport, stop: asyncio.Event) -> None:
        while self._asked < turns and not stop.is_set():
            batch = [self._next_problem() for _ in range(min(self.settings.problems_per_session, turns - self._asked))]
            try:
                await self._converse(batch, report, stop)
                self._failed_in_a_row = 0
            except openai.APIError as failure:  # a conversation that broke is counted, and she starts another
                report.failed += 1
                report.errors[type(failure).__name__] += 1
                self._failed_in_a_row += 1
                if self._failed_in_a_row >= self.settings.give_up_after:
                    raise
                await asyncio.sleep(min(0.25 * 2**self._failed_in_a_row, 5.0))

    def _next_problem(self) -> tuple[int, Problem]:
        """The next one, in an order that is shuffled anew each time round."""
        lap, place = divmod(self._asked, len(self._problems))
        order = random.Random(f"{self.settings.seed}-{lap}").sample(range(len(self._problems)), len(self._problems))
        self._asked += 1
        return self._asked, self._problems[order[place]]

    async def _converse(self, batch: Sequence[tuple[int, Problem]], report: RunReport, stop: asyncio.Event) -> None:
        """One session: problem, answer, reply, and on to the next problem."""
        session = f"student-{uuid.uuid4().hex[:12]}"
        messages: list[Message] = []
        for place, (number, problem) in enumerate(batch):
            messages.append({"role": "user", "content": problem.question})
            answer = await self._say(messages, session, self.settings.max_tokens)
            scored = score(answer.text, problem)
            words = reply_to(scored, problem, self.settings.seed + number)
            messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": words}]
            last = place == len(batch) - 1 or stop.is_set()
            closing = await self._say(messages, session, self.settings.reply_max_tokens, done=last)
            messages.append({"role": "assistant", "content": closing.text})
            report.turns += 1
            report.content += scored.content
            report.total += scored.total
            if self._on_turn:
                self._on_turn(TurnReport(number=number, problem=problem, answer=answer, score=scored, reply=words))
            if last:
                return

    async def _say(self, messages: Sequence[Message], session: str, max_tokens: int, done: bool = False) -> Answer:
        headers = {"X-Session-Id": session, **({"X-Session-Done": "true"} if done else {})}
        return await ask(
            self._client,
            messages,
            model=self.settings.model,
            temperature=self.settings.temperature,
            max_tokens=max_tokens,
            headers=headers,
        )


async def evaluate(
    client: openai.AsyncOpenAI,
    *,
    model: str = "smollm2-135m-instruct",
    problems: int = 24,
    temperature: float = 0.7,
    max_tokens: int = 128,
    sessions: int = 4,
    on_answer: Callable[[int, RubricScore], None] | None = None,
) -> Evaluation:
    """Scores first answers to unseen problems. A failed request raises: a score with answers missing is no score.

    More problems than there are (24) are asked again, which makes the mean steadier when the temperature is above 0.
    """
    unseen = load_problems("unseen")
    asked = [unseen[i % len(unseen)] for i in range(problems)]
    slots, done = asyncio.Semaphore(sessions), 0

    async def one(problem: Problem) -> tuple[Answer, RubricScore]:
        nonlocal done
        async with slots:
            answer = await ask(
                client,
                [{"role": "user", "content": problem.question}],
                model=model,
                temperature=temperature,
                max_tokens=max_tokens,
                headers={"X-Turn-Type": "side"},
            )
        scored, done = score(answer.text, problem), done + 1
        if on_answer:
            on_answer(done, scored)
        return answer, scored

    pairs = await asyncio.gather(*(one(problem) for problem in asked))
    return summarise(pairs)


def summarise(pairs: Sequence[tuple[Answer, RubricScore]]) -> Evaluation:
    """Means over scored answers."""
    if not pairs:
        raise ValueError("no answers to summarise: ask for at least one problem")
    scores, n = [scored for _, scored in pairs], len(pairs)
    return Evaluation(
        answers=n,
        mean=sum(s.total for s in scores) / n,
        content=sum(s.content for s in scores) / n,
        right=sum(s.right for s in scores) / n,
        words=sum(s.words for s in scores) / n,
        kept={name: sum(s.kept[name] for s in scores) / n for name in CRITERIA},
        versions=tuple(sorted({a.version for a, _ in pairs if a.version is not None})),
        texts=tuple(a.text for a, _ in pairs),
    )
