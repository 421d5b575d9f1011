"""The track's tasks: limits, and the fields that a gui task has besides the common ones.

What it does: `load` gives our own tasks; `load_file` reads a task file, ours or yours.
What it leaves out: running them (`environment.py`).

    page = "mail"                       # the folder pages/mail, beside the folder of the task file
    start = "#/inbox"                   # optional: what follows http://task.local/ when the page is opened
    storage = {theme = "dark"}          # optional: what localStorage holds in the beginning
    checks = [{name = "sent", js = "app.state.sent.length === 1"}]

A check is a JavaScript expression, evaluated in the page in the end, that gives true or false. One that throws is a
failure of the environment, unless it says `error = "fails"`.
"""

from functools import cache
from pathlib import Path
from typing import Any

from serve.environments.gui.site import PAGES
from serve.environments.tasks import Limits, Place, Task, check_all, load_toml

LIMITS = Limits(steps=20, step_s=10.0, episode_s=180.0, output_chars=6000)
TASKS = Path(__file__).parent / "tasks"
FIELDS = {"page", "start", "storage", "checks"}


@cache
def load() -> tuple[Task, ...]:
    """Our own tasks."""
    return check_all(task for path in sorted(TASKS.glob("*.toml")) for task in load_file(path))


def load_file(path: Path) -> list[Task]:
    """The tasks of one file. Their pages lie in the folder `pages` beside the file's folder.

    Raises:
        TaskError: names file, line and field.
    """
    return load_toml(path, "gui", LIMITS, _payload)


def _payload(fields: dict[str, Any], place: Place) -> dict[str, Any]:
    if unknown := sorted(set(fields) - FIELDS):
        raise place.error(unknown[0], f"unknown; a gui task has {', '.join(sorted(FIELDS))}")
    pages = (place.path.parent.parent / "pages").resolve()
    page = fields.get("page")
    if not isinstance(page, str) or not page or "/" in page or page.startswith("."):
        raise place.error("page", f"{page!r}: the name of a folder in {pages} is needed")
    if not (pages / page / "index.html").is_file():
        raise place.error("page", f"there is no {pages / page / 'index.html'}")
    start, storage = fields.get("start", ""), fields.get("storage", {})
    if not isinstance(start, str) or start.startswith("/") or "://" in start:
        raise place.error("start", f"{start!r}: what follows the site's address is needed, like '?x=1' or '#/inbox'")
    if not isinstance(storage, dict) or not all(isinstance(value, str) for value in storage.values()):
        raise place.error("storage", "a table of texts is needed, as localStorage holds them")
    payload = {"page": page, "start": start, "storage": storage, "checks": _checks(fields.get("checks"), place)}
    return payload if pages == PAGES.resolve() else payload | {"pages": str(pages)}


def _checks(given: Any, place: Place) -> list[dict[str, str]]:
    if not isinstance(given, list) or not given:
        raise place.error("checks", "at least one is needed, like {name = 'sent', js = 'app.state.sent.length === 1'}")
    names = set()
    for check in given:
        if not isinstance(check, dict) or not {"name", "js"} <= set(check) <= {"name", "js", "error"}:
            raise place.error("checks", f"{check!r}: name and js are needed, error is optional")
        if not all(isinstance(value, str) and value.strip() for value in check.values()):
            raise place.error("checks", f"{check!r}: texts are needed")
        if check.get("error", "fails") != "fails":
            raise place.error("checks", f"error is {check['error']!r}: only 'fails' is known")
        if check["name"] in names:
            raise place.error("checks", f"the name {check['name']!r} stands twice")
        names.add(check["name"])
    return [dict(check) for check in given]
