"""The records that every loop speaks in: frozen, typed, checked when they are made.

What it does: one class per record, each field with its meaning and its shape or unit; `new_id()` makes ids.
What it leaves out: Arrow and JSON forms (`storage/arrow.py` derives both from the annotations here).

Axes: P = prompt tokens, R = response tokens. Log-probabilities are natural logarithms. Times are Unix seconds (UTC),
durations end in `_s`. Ids are ULIDs: made once, never re-used, sortable by time.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from ulid import ULID

TokenIds = Annotated[tuple[int, ...], "list<int32>"]
LogProbs = Annotated[tuple[float, ...], "list<float32>"]
Time = Annotated[float, "timestamp"]
Json = Annotated[Any, "json"]

Kind = Literal["main", "side"]
Relation = Literal["first", "follow", "retry", "branch"]
Role = Literal["user", "tool", "environment", "feedback"]
FinishReason = Literal["stop", "length", "tool_calls", "abort", "error", "refused"]
EpisodeStatus = Literal["done", "truncated", "error"]


def new_id() -> str:
    """A fresh ULID, 26 characters."""
    return str(ULID())


def _same_length(what: str, **columns: tuple | None) -> None:
    lengths = {name: len(column) for name, column in columns.items() if column is not None}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{what}: these must be of one length: {lengths}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """The response tokens [start, end) that one weight version sampled."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request that was accepted, and its answer. Token ids are the engine's own: text is never tokenised again."""

    SCHEMA_VERSION: ClassVar[int] = 1

    exchange_id: str
    tenant: str  # whose key it came with
    model: str  # the model's name, without version
    version: int  # the version that sampled the last token (served at arrival, where there is none)
    received_at: Time
    messages: Json  # the chat messages as the client sent them, our own fields taken out
    tools: Json  # the tool declarations as sent, or None
    sampling: Json  # {"temperature", "top_p", "max_tokens", "stop", ...}: what the engine was told
    prompt_ids: TokenIds  # [P]
    response_ids: TokenIds  # [R]
    response_logprobs: LogProbs  # [R] of the engine: scaled by temperature, before top-p/top-k
    version_spans: tuple[VersionSpan, ...]  # contiguous, covering [0, R)
    answer: Json  # the assistant message the client was given: {"role", "content", "tool_calls"?, "reasoning"?}
    finish_reason: FinishReason
    latency_s: float  # arrival to last token
    first_token_s: float | None  # arrival to first token
    client: str  # the user-agent, cut to 200 characters
    track: str = "personal"
    named_session: str | None = None  # the session id the client named, and None where it named none
    session_fields: Json = None  # every session-like field as received: {"x-session-affinity": "...", "user": "..."}
    turn_type: Kind | None = None  # X-Turn-Type, where sent
    session_done: bool = False  # X-Session-Done
    error: str | None = None  # why, for finish_reason error and refused
    # decided later by the tracker (record Turn), filled in when the exchange is sealed
    session_id: str | None = None
    parent_id: str | None = None
    kind: Kind | None = None
    why_kind: str | None = None

    def __post_init__(self) -> None:
        _same_length(
            f"exchange {self.exchange_id}", response_ids=self.response_ids, response_logprobs=self.response_logprobs
        )
        at = 0
        for span in self.version_spans:
            if span.start != at or span.end < span.start:
                raise ValueError(f"exchange {self.exchange_id}: version spans leave a gap at token {at}: {span}")
            at = span.end
        if at != len(self.response_ids):
            raise ValueError(
                f"exchange {self.exchange_id}: version spans cover {at} of {len(self.response_ids)} tokens"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Where the tracker put an exchange: in which session, after which, main or side and why."""

    SCHEMA_VERSION: ClassVar[int] = 1

    exchange_id: str
    session_id: str  # ours: a ULID, or the client's own id where it named one
    parent_id: str | None  # the exchange whose answer is the anchor
    relation: Relation  # first of its session, follows its parent, repeats a sibling, or opens a branch
    kind: Kind
    why_kind: str  # a sentence for people
    ambiguous: bool  # several anchors were equally good
    version: int  # the exchange's own
    decided_at: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class NextState:
    """What followed an answer."""

    SCHEMA_VERSION: ClassVar[int] = 1

    next_state_id: str
    exchange_id: str  # the answer that it follows
    role: Role
    content: str  # ephemeral blocks taken out; several tool results are joined, each under its name
    source_exchange_id: str | None  # the request that carried it; None for feedback
    arrived_at: Time
    score: float | None = None  # feedback with a number or a thumb: -1 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One judge's say: evaluative (score) or directive (score and hint)."""

    score: int  # +1, 0, -1
    hint: str | None  # directive votes only
    text: str  # the judge's own words or the rule's name, cut to 2,000 characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the judge made of one turn. No valid vote means no reward, and `error` says why: never a silent 0."""

    SCHEMA_VERSION: ClassVar[int] = 1

    verdict_id: str
    exchange_id: str
    next_state_id: str
    evaluative: tuple[Vote, ...]
    reward: int | None  # the majority: +1, 0, -1; a tie is 0; None without a valid vote
    directive: tuple[Vote, ...]
    hint: str | None  # the chosen one, at least 10 characters
    chosen_by: str | None  # "longest" or "overlap"
    judge: str  # name and version, as "rules/1"
    prompt_version: str  # the prompts' or rules' own version
    latency_s: float
    error: str | None
    judged_at: Time

    def __post_init__(self) -> None:
        if self.reward not in (None, -1, 0, 1):
            raise ValueError(f"verdict {self.verdict_id}: reward {self.reward!r} is not one of +1, 0, -1, none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the trainer takes: one answer, its reward or hint, and the ids it was made of."""

    SCHEMA_VERSION: ClassVar[int] = 1

    sample_id: str
    exchange_id: str
    tenant: str
    track: str
    token_ids: TokenIds  # [P+R] prompt, then response
    mask: TokenIds  # [P+R] 1 on response tokens that train, else 0
    rollout_logprobs: LogProbs  # [R] the engine's
    temperature: float  # of the request; scored at 1 where it was 0
    versions: tuple[VersionSpan, ...]  # over the R response tokens
    reward: float | None
    hint: str | None
    enhanced_prompt_ids: TokenIds | None  # [P'] the prompt with the hint, ready for the teacher
    group_id: str | None
    step_index: int | None
    kl_weight: float  # beta of the KL term
    loss_weight: float
    created_at: Time

    def __post_init__(self) -> None:
        _same_length(f"sample {self.sample_id}", token_ids=self.token_ids, mask=self.mask)
        if not 0 < len(self.rollout_logprobs) < len(self.token_ids):
            raise ValueError(
                f"sample {self.sample_id}: {len(self.rollout_logprobs)} response log-probs do not fit "
                f"{len(self.token_ids)} tokens (at least one prompt and one response token are needed)"
            )
        if self.reward is None and self.hint is None:
            raise ValueError(f"sample {self.sample_id}: neither a reward nor a hint: nothing to learn")
        if (self.hint is None) != (self.enhanced_prompt_ids is None):
            raise ValueError(f"sample {self.sample_id}: hint and enhanced_prompt_ids go together")
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise ValueError(f"sample {self.sample_id}: temperature {self.temperature} must be finite and not negative")

    @property
    def prompt_length(self) -> int:
        """P, in tokens."""
        return len(self.token_ids) - len(self.rollout_logprobs)

    @property
    def response_ids(self) -> tuple[int, ...]:
        """[R] the sampled ids."""
        return self.token_ids[self.prompt_length :]

    @property
    def version(self) -> int:
        """The oldest version that sampled a token of it: what the version lag is counted from."""
        return min(span.version for span in self.versions)

    @property
    def counts(self) -> bool:
        """Whether it counts towards a batch: a reward of +1 or -1, a hint, or any reward among a group's steps."""
        return self.reward in (1, -1) or self.hint is not None or self.group_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposition:
    """The last word on a turn that does not become a sample, or on a sample that will not train, with the reason."""

    SCHEMA_VERSION: ClassVar[int] = 1

    exchange_id: str
    sample_id: str | None
    reason: str  # one word or two, counted in `clawrl status`: "no next state", "neutral", "unjudged", "too old"
    detail: str  # a sentence for people
    decided_at: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one update computed per response token of a sample."""

    SCHEMA_VERSION: ClassVar[int] = 1

    sample_id: str
    update_id: str
    logp_old: LogProbs  # [R]
    logp_teacher: LogProbs | None  # [R]
    logp_ref: LogProbs | None  # [R]
    advantage: LogProbs  # [R]
    weight: LogProbs  # [R] the capped importance weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimiser step that was committed."""

    SCHEMA_VERSION: ClassVar[int] = 1

    update_id: str
    model: str
    from_version: int
    to_version: int
    sample_ids: tuple[str, ...]
    metrics: Json  # {"loss": ..., "grad_norm": ..., "kl_start": ...}
    started_at: Time
    ended_at: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action of an episode and what it led to."""

    index: int
    exchange_id: str | None
    action: str
    observation: str
    reward: float | None  # the step judge's mean vote
    messages: Json = None  # exactly what the policy was shown, where no exchange holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One run of an environment. A failure of environment or judge is an error, never a low score."""

    SCHEMA_VERSION: ClassVar[int] = 1

    episode_id: str  # its key (wave, task, index), so that it can be resumed
    task_id: str
    track: str
    group_id: str
    steps: tuple[Step, ...]
    outcome: float | None  # -1 to 1; None where status is error
    process_rewards: LogProbs  # one per step
    status: EpisodeStatus
    reason: str | None
    started_at: Time
    ended_at: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of a version."""

    name: str  # file name below the prefix
    sha256: str  # hex
    size: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A committed set of weights. It exists once its manifest is written."""

    SCHEMA_VERSION: ClassVar[int] = 1

    model: str
    number: int  # our own identity; never re-used
    parent: int | None  # None for the base weights
    update_id: str
    source: str  # object-store address of the folder with the shards, loadable by transformers
    shards: tuple[Shard, ...]
    sample_ids: tuple[str, ...]  # what this update consumed
    metrics: Json
    fence: int  # the trainer's lease
    optimizer_from: int | None  # the version whose optimiser state this update began with
    created_at: Time
    trainer: str = ""  # what computed it: "megatron-core 0.16.1, world 1"
