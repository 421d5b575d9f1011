"""The policy: one engine that serves the version an alias names, and follows the alias while it serves.

What it does: starts the engine with the right weights, looks at the aliases every second (`pinned` if it is set, else
`live`), swaps weights in place, restarts an engine that died with the version it served, and says all of it in
`status()`. MLflow or the object store being down changes nothing about what is served.
What it leaves out: requests (gateways go to the engine directly), moving aliases (the learner, people).
`Policy` knows no Ray; `serve/app.py` makes the deployment of it. A version is never swapped inside `reconfigure`: Serve
does not route to a replica that is updating.
"""

import asyncio
import contextlib
import hashlib
import logging
import shutil
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

from serve.alarms import Alarms
from serve.engine import Engine, EngineSettings
from serve.engine_client import EngineError
from storage.journal import JournalWriter
from storage.objects import StoreSettings
from train.whole import MERGED, folder_name, whole_weights

log = logging.getLogger("clawrl.policy")

LOCAL_COPIES = 3  # versions that a policy downloaded and keeps


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """What to serve, and from where."""

    model: str
    base_model_dir: str  # version 0, and what is served as long as no alias is set
    weights_dir: str  # local copies of versions, each in a folder v000012
    engine: EngineSettings = field(default_factory=EngineSettings)
    store: StoreSettings | None = None  # None: the base weights, for ever
    tracking_uri: str | None = None  # MLflow's address
    aliases: tuple[str, ...] = ("pinned", "live")  # the first that is set counts; production: ("champion",)
    journal_root: str | None = None  # for alarms
    poll_s: float = 1.0
    patience_s: float = 10.0  # for one look at the aliases


@dataclass(frozen=True, slots=True)
class Weights:
    """A version as a local folder."""

    version: int
    path: str
    sha256: dict[str, str]  # file name -> hash


class VersionSource(Protocol):
    """Where versions come from. Called in threads."""

    def wanted(self) -> int | None:
        """The version that an alias names; None where none is set."""
        ...

    def fetch(self, number: int) -> Weights:
        """Its local copy, verified."""
        ...


class StoreSource:
    """Aliases from MLflow, weights from the object store."""

    def __init__(self, settings: PolicySettings) -> None:
        from storage.registry import Registry
        from storage.versions import VersionStore

        assert settings.store is not None and settings.tracking_uri is not None
        self._settings = settings
        self._registry = Registry(settings.tracking_uri, settings.model)
        self._versions = VersionStore(settings.store.open(), settings.model)
        self._ours: list[Path] = []  # the copies that we downloaded: the trainer cares for its own

    def wanted(self) -> int | None:
        """The first alias that is set."""
        for name in self._settings.aliases:
            if (number := self._registry.alias(name)) is not None:
                return number
        return None

    def fetch(self, number: int) -> Weights:
        """The local copy; downloaded and checked where there is none. Our own older copies go."""
        root = Path(self._settings.weights_dir)
        if not (root / folder_name(number)).exists():
            self._ours.append(root / folder_name(number))
        folder = whole_weights(self._versions, number, root)
        if folder.name.endswith(MERGED):
            self._ours.append(folder)
        while len(self._ours) > LOCAL_COPIES:
            shutil.rmtree(self._ours.pop(0), ignore_errors=True)
        shards = self._versions.get(number).shards
        return Weights(number, str(folder), {shard.name: shard.sha256 for shard in shards})


def base_weights(folder: Path | str) -> Weights:
    """The base model as version 0."""
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no .safetensors: give a model folder as transformers saves it")
    hashes = {}
    for path in files:
        with path.open("rb") as file:
            hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return Weights(0, str(folder), hashes)


class Policy:
    """One engine and its watcher. Use it from one event loop, in a thread that lives as long as the engine shall."""

    def __init__(
        self, settings: PolicySettings, source: VersionSource | None, on_alarm: Callable[[str], None] | None = None
    ) -> None:
        self.settings, self.source = settings, source
        self.engine = Engine(settings.engine)
        self.alarms = Alarms()
        self.state = "starting"  # "ready", "swapping", "restarting", "failed"
        self.weights: Weights | None = None
        self.restarts = 0
        self._on_alarm = on_alarm or (lambda text: log.warning("%s", text))
        self._swap_s: float | None = None
        self._swapped_at: float | None = None
        self._swaps: deque[dict[str, float]] = deque(maxlen=50)  # version, when [Unix s], how long [s]
        self._wanted: int | None = None
        self._refused: tuple[int, float] | None = None  # a version that could not be taken, and when to try again
        self._poked = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the watcher, which starts the engine."""
        self._watcher = asyncio.create_task(self._watch())

    async def ready(self, within_s: float) -> None:
        """Wait until it serves."""
        until_s = time.monotonic() + within_s
        while self.state != "ready":
            if time.monotonic() > until_s:
                raise TimeoutError(f"the policy is {self.state} after {within_s:.0f} s: {self.alarms.active()}")
            await asyncio.sleep(0.1)

    def poke(self) -> None:
        """Look at the aliases now."""
        self._poked.set()

    def address(self) -> dict[str, Any]:
        """Where the engine is and what it serves, for gateways."""
        version = self.weights.version if self.weights else 0
        state = self.state if self.engine.alive or self.state != "ready" else "restarting"
        # a request that arrives during a swap waits in the engine, and is answered by the new weights
        return {"url": self.engine.url, "version": version, "state": "ready" if state == "swapping" else state}

    def status(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "state": self.state,
            "version": self.weights.version if self.weights else None,
            "path": self.weights.path if self.weights else None,
            "sha256": self.weights.sha256 if self.weights else {},
            "wanted": self._wanted,
            "url": self.engine.url,
            "engine_pid": self.engine.pid,
            "engine_log": str(self.engine.log_path),
            "restarts": self.restarts,
            "last_swap_s": self._swap_s,
            "swapped_at": self._swapped_at,
            "swaps": list(self._swaps),
            "alarms": [asdict(alarm) for alarm in self.alarms.active()],
        }

    async def close(self) -> None:
        """Stop watching and stop the engine."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self.engine.close()

    # The watcher

    async def _watch(self) -> None:
        self.weights = await self._first_weights()
        while True:
            try:
                if not self.engine.alive:
                    await self._run_engine()
                await self._follow()
            except Exception as error:  # the boundary of the watcher: it must outlive whatever goes wrong once
                log.exception("the policy's watcher")
                self._alarm("policy", f"{type(error).__name__}: {error}")
                await asyncio.sleep(self.settings.poll_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._poked.wait(), self.settings.poll_s)
            self._poked.clear()

    async def _first_weights(self) -> Weights:
        """The wanted version; what was served last where that can't be had; the base otherwise."""
        wanted = await self._look()
        if wanted is not None:
            fetched = await self._fetch(wanted)
            if fetched is not None:
                return fetched
        served = self._served_before()
        return served or await asyncio.to_thread(base_weights, self.settings.base_model_dir)

    @property
    def _note(self) -> Path:
        return Path(self.settings.weights_dir) / "served.json"

    def _served_before(self) -> Weights | None:
        try:
            found = Weights(**orjson.loads(self._note.read_bytes()))
        except (OSError, ValueError, TypeError):  # there is none, or it is not whole
            return None
        return found if Path(found.path, "config.json").is_file() else None

    async def _look(self) -> int | None:
        """What the aliases say; what they said before where they can't be read."""
        if self.source is None:
            return None
        try:
            self._wanted = await asyncio.wait_for(asyncio.to_thread(self.source.wanted), self.settings.patience_s)
            self.alarms.clear("registry")
        except Exception as error:  # the boundary to MLflow: serving goes on whatever it answers
            self._alarm("registry", f"the aliases can't be read, the version stays: {type(error).__name__}: {error}")
        return self._wanted

    async def _fetch(self, number: int) -> Weights | None:
        assert self.source is not None
        try:
            found = await asyncio.to_thread(self.source.fetch, number)
        except Exception as error:  # the boundary to the object store: serving goes on with what there is
            self._alarm("store", f"version {number} can't be had: {type(error).__name__}: {error}")
            self._refused = (number, time.monotonic() + 5)
            return None
        self.alarms.clear("store")
        return found

    async def _run_engine(self) -> None:
        assert self.weights is not None
        died = self.state != "starting"
        if died:
            self.state = "restarting"
            self.restarts += 1
            self._alarm("engine", f"the engine died; it is started again with version {self.weights.version}")
        self.engine.kill()  # what a dead server left behind
        if not Path(self.weights.path, "config.json").is_file() and self.source is not None:
            self.weights = await self._fetch(self.weights.version) or self.weights  # the copy was tidied away
        try:
            seconds = await self.engine.start(self.weights.path, self.weights.version)
        except (EngineError, ValueError) as error:
            self.state = "failed"
            self._alarm("engine", str(error))
            await self.engine.stop()
            await asyncio.sleep(min(30.0, 2.0 * (1 + self.restarts)))
            return
        log.info("the engine serves version %d after %.1f s", self.weights.version, seconds)
        self.state = "ready"
        self.alarms.clear("engine")
        self.alarms.clear("policy")
        self._remember()

    async def _follow(self) -> None:
        wanted = await self._look()
        if wanted is None or self.weights is None or wanted == self.weights.version or self.state != "ready":
            return
        if self._refused and self._refused[0] == wanted and time.monotonic() < self._refused[1]:
            return
        fetched = await self._fetch(wanted)
        if fetched is not None:
            await self._swap(fetched)

    async def _swap(self, weights: Weights) -> None:
        began = time.monotonic()
        self.state = "swapping"
        try:
            await self.engine.client.load(weights.path, weights.version)
        except EngineError as error:
            self._refused = (weights.version, time.monotonic() + 10)
            self._alarm("swap", f"version {weights.version} is not served: {error}")
        else:
            self.weights = weights
            self._swap_s, self._swapped_at = time.monotonic() - began, time.time()
            self._swaps.append({"version": weights.version, "at": self._swapped_at, "seconds": self._swap_s})
            log.info("serving version %d after a swap of %.2f s", weights.version, self._swap_s)
            self.alarms.clear("swap")
            self._remember()
        finally:
            self.state = "ready"

    def _remember(self) -> None:
        assert self.weights is not None
        self._note.parent.mkdir(parents=True, exist_ok=True)
        part = self._note.with_suffix(".part")
        part.write_bytes(orjson.dumps(asdict(self.weights)))
        part.rename(self._note)

    def _alarm(self, source: str, text: str) -> None:
        before = {alarm.source: alarm.text for alarm in self.alarms.active()}
        self.alarms.raise_(source, text)
        if before.get(source) != text[:500]:
            self._on_alarm(f"{source}: {text}")


def journal_alarms(settings: PolicySettings) -> Callable[[str], None] | None:
    """Alarms into the journal, where there is one."""
    if settings.journal_root is None:
        return None
    import os

    journal = JournalWriter(Path(settings.journal_root), settings.model, f"policy-{os.getpid()}")

    def tell(text: str) -> None:
        journal.append("alarm", {"source": "policy", "text": text, "at": time.time()}, 0)

    return tell
