"""All settings in one place: each class lies beside its user, here they are put together for one machine.

    [server]   addresses, tenants        [model]    which model            [engine]  SGLang
    [judge]    who judges                [samples]  what may train         [pool]    when a step is due
    [train]    the step itself           [live]     rhythms, retries       [tracker], [probation]

Write only what differs into config.toml. The defaults are the profile of a laptop without a GPU with the 135M model;
what it does differently from the paper is said beside each value.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from infra.home import Home, State
from infra.model import NAME, default_dir
from judge import JudgeSettings
from serve.batches import PoolSettings
from serve.engine import EngineSettings
from serve.probation import ProbationSettings
from serve.samples import SampleSettings
from serve.sessions import TrackerSettings
from storage.objects import StoreSettings
from train.settings import BatchSettings, TrainSettings

if TYPE_CHECKING:
    from serve.actors import TrainerPlace
    from serve.gateway import GatewaySettings
    from serve.live import LiveSettings
    from serve.policy import PolicySettings


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Addresses, and who may talk."""

    host: str = "127.0.0.1"
    gateway_port: int = 8700  # 0 chooses a free one, here and below
    mlflow_port: int = 8701
    s3_port: int = 8702
    ray_port: int = 8703
    tenants: dict[str, str] = field(default_factory=dict)  # further API keys, each with the tenant it belongs to
    max_body_bytes: int = 8 << 20
    max_in_flight: int = 256  # more requests are told to come back
    engine_wait_s: float = 60.0  # how long a request waits for an engine that restarts

    def __post_init__(self) -> None:
        if self.host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(
                f"server.host is {self.host!r}: this command binds to loopback only. Put a proxy with TLS in front."
            )

        given: dict[int, str] = {}
        for part, port in self.ports().items():
            if not 0 <= port <= 65535:
                raise ValueError(f"server.{part}_port is {port}: ports are from 1 to 65535, 0 chooses a free one")
            if port and port in given:
                raise ValueError(f"server.{part}_port and server.{given[port]}_port are both {port}: set another")
            given[port] = part

    def ports(self) -> dict[str, int]:
        """Port by part; 0 where it is to be chosen."""
        return {name: getattr(self, f"{name}_port") for name in ("gateway", "mlflow", "s3", "ray")}


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model is served and trained."""

    name: str = NAME  # in the API, in MLflow, in the object store
    dir: Path | None = None  # a folder that transformers loads; none: the one that `make model` fetches
    template: str | None = None  # a chat template of your own; none: chosen by probing the model's

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return (self.dir or default_dir()).resolve()


@dataclass(frozen=True, kw_only=True)
class LearningSettings:
    """The learner's rhythms (`serve/live.py` says what each means)."""

    learning: bool = True
    judge_at_once: int = 8
    judge_tries: int = 3
    judge_retry_s: float = 5.0
    keep_s: float = 20.0
    keep_last: int = 3


_SAID_ONCE = {  # of train.batch: what sets it
    "full_batch": "pool.batch_size",
    "min_samples": "pool.batch_least",
    "max_version_lag": "pool.max_version_lag",
    "max_train_tokens": "samples.max_train_tokens",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What config.toml and CLAWRL_* variables can say."""

    server: ServerSettings = field(default_factory=ServerSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    tracker: TrackerSettings = field(default_factory=TrackerSettings)
    samples: SampleSettings = field(default_factory=SampleSettings)
    pool: PoolSettings = field(default_factory=PoolSettings)
    probation: ProbationSettings = field(default_factory=ProbationSettings)
    live: LearningSettings = field(default_factory=LearningSettings)
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self) -> None:
        untouched = BatchSettings()
        for name, instead in _SAID_ONCE.items():
            given = getattr(self.train.batch, name)
            if given != getattr(untouched, name):
                raise ValueError(f"train.batch.{name} is {given}: it follows {instead} here; set that")

    def trainer(self) -> TrainSettings:
        """The trainer's, with the limits that pool and samples set: they are said once."""
        batch = replace(
            self.train.batch,
            full_batch=self.pool.batch_size,
            min_samples=min(self.pool.batch_least, self.pool.batch_size),
            max_version_lag=self.pool.max_version_lag,
            max_train_tokens=self.samples.max_train_tokens,
        )
        return replace(self.train, batch=batch)


def gateway_settings(settings: Settings, home: Home, state: State) -> "GatewaySettings":
    """The gateway's. The key that was made on first start belongs to the tenant `owner`."""
    from serve.gateway import GatewaySettings

    return GatewaySettings(
        model=settings.model.name,
        model_dir=str(settings.model.folder),
        journal_root=str(home.journal),
        api_keys={home.secret("api_key"): "owner", **settings.server.tenants},
        template=settings.model.template,
        max_body_bytes=settings.server.max_body_bytes,
        max_in_flight=settings.server.max_in_flight,
        engine_wait_s=settings.server.engine_wait_s,
        listen_host=state.host,
        listen_port=state.ports["gateway"],
    )


def policy_settings(settings: Settings, home: Home, state: State, store: StoreSettings) -> "PolicySettings":
    """The policy's. It shares the folder of local copies with the trainer."""
    from serve.policy import PolicySettings

    return PolicySettings(
        model=settings.model.name,
        base_model_dir=str(settings.model.folder),
        weights_dir=str(home.weights / settings.model.name),
        engine=replace(settings.engine, log_dir=str(home.logs)),
        store=store,
        tracking_uri=state.url("mlflow"),
        journal_root=str(home.journal),
    )


def trainer_place(settings: Settings, home: Home, store: StoreSettings) -> "TrainerPlace":
    """Where the trainer works."""
    from serve.actors import TrainerPlace

    return TrainerPlace(model=settings.model.name, model_dir=settings.model.folder, local_dir=home.weights, store=store)


def live_settings(settings: Settings, home: Home, state: State, store: StoreSettings) -> "LiveSettings":
    """The learner's."""
    from serve.live import LiveSettings

    return LiveSettings(
        model=settings.model.name,
        model_dir=settings.model.folder,
        journal_root=home.journal,
        store=store,
        tracking_uri=state.url("mlflow"),
        tracker=settings.tracker,
        samples=settings.samples,
        pool=settings.pool,
        probation=settings.probation,
        template=settings.model.template,
        learning=settings.live.learning,
        judge_at_once=settings.live.judge_at_once,
        judge_tries=settings.live.judge_tries,
        judge_retry_s=settings.live.judge_retry_s,
        keep_s=settings.live.keep_s,
        keep_last=settings.live.keep_last,
    )
