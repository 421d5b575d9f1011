"""Sites and tasks that tests make."""

from pathlib import Path
from typing import Any

from serve.environments.gui import LIMITS
from serve.environments.protocol import Action, Call, Observation
from serve.environments.tasks import Task

TRUE = {"name": "always", "js": "true"}


def make_task(
    folder: Path, html: str, *, checks: list[dict[str, Any]] | None = None, start: str = "", **limits: Any
) -> Task:
    """A task whose page is `html`, in folder/page/index.html."""
    (folder / "page").mkdir(exist_ok=True)
    (folder / "page" / "index.html").write_text(f"<!doctype html><title>Test</title>{html}", "utf-8")
    payload = {"page": "page", "pages": str(folder), "start": start, "storage": {}, "checks": checks or [TRUE]}
    return Task(
        task_id="t", track="gui", skill="s", split="train", difficulty=1, instruction="do it",
        limits=LIMITS.replace(limits), payload=payload,
    )  # fmt: skip


def act(name: str, **arguments: Any) -> Action:
    """An action of one call; `from_` stands for `from`."""
    return Action(text="", calls=(Call(name=name, arguments={key.rstrip("_"): v for key, v in arguments.items()}),))


def find(observation: Observation, role: str, name: str) -> str:
    """The id of the only element of this role and name."""
    elements = observation.facts["elements"]
    (found,) = [key for key, one in elements.items() if (one["role"], one["name"]) == (role, name)]
    return found
