"""How the command talks to a running system: its addresses, its key, its status, its stores.

What it leaves out: what is done with them. Raises ValueError with the next step where nothing runs.
"""

import os
from typing import TYPE_CHECKING, Any

import httpx

from infra.config import load
from infra.home import Home, State
from infra.settings import Settings

if TYPE_CHECKING:  # heavy: only verbs that need the stores wait for them
    from storage.objects import ObjectStore, StoreSettings
    from storage.registry import Registry
    from storage.versions import VersionStore


class Running:
    """A system that `up` started."""

    def __init__(self, home: Home) -> None:
        state = home.state()
        if state is None or not any(started.process() for started in state.processes):
            raise ValueError(f"nothing runs in {home.root}. Start it with `clawrl up`.")
        self.home, self.state = home, state
        self.settings = load(Settings, home.config)

    @property
    def base_url(self) -> str:
        """What an OpenAI client is pointed at."""
        return self.state.url("gateway") + "/v1"

    @property
    def api_key(self) -> str:
        """The owner's key."""
        return self.home.secret("api_key")

    def admin(self) -> dict[str, Any]:
        """The gateway's joined status. Raises ConnectionError where the gateway does not answer."""
        try:
            answer = httpx.get(
                self.state.url("gateway") + "/admin/status",
                headers={"Authorization": f"Bearer {self.api_key}"},
                timeout=15,
            )
            answer.raise_for_status()
        except httpx.HTTPError as fault:
            raise ConnectionError(
                f"the gateway at {self.state.url('gateway')} does not answer: {fault}. See {self.home.logs}"
            ) from fault
        return answer.json()

    def objects(self) -> "ObjectStore":
        """The object store."""
        return store_settings(self.home, self.state).open()

    def versions(self) -> "VersionStore":
        """The committed versions."""
        from storage.versions import VersionStore

        return VersionStore(self.objects(), self.settings.model.name)

    def registry(self) -> "Registry":
        """The MLflow registry."""
        from storage.registry import Registry

        return Registry(self.state.url("mlflow"), self.settings.model.name)


def store_settings(home: Home, state: State) -> "StoreSettings":
    """Where the object store of this system is, with its keys."""
    from storage.objects import StoreSettings

    return StoreSettings(
        url="s3://clawrl",
        endpoint=state.url("s3"),
        access_key=home.secret("s3_access_key"),
        secret_key=home.secret("s3_secret_key"),
    )


def openai_client(running: Running) -> Any:
    """The official client, pointed at the gateway."""
    from openai import OpenAI

    os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")
    return OpenAI(base_url=running.base_url, api_key=running.api_key, timeout=600, max_retries=3)
