"""The track's tasks: limits, and the fields that a gui task has besides the common ones.

What it does: `load` gives our own tasks; `load_file` reads a task file, ours or yours; `check_payload` looks at the
same fields of a task that came as JSON, and `folder_of` finds its page.
What it leaves out: running them (`environment.py`).

    page = "mail"                       # the folder pages/mail, beside the folder of the task file
    start = "#/inbox"                   # optional: what follows http://task.local/ when the page is opened
    storage = {theme = "dark"}          # optional: what localStorage holds in the beginning
    checks = [{name = "sent", js = "app.state.sent.length === 1"}]

A check is a JavaScript expression, evaluated in the page in the end, that gives true or false. One that throws is a
failure of the environment, unless it says `error = "fails"`.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from serve.environments.gui.site import PAGES
from serve.environments.tasks import Limits, Place, Task, TaskError, check_all, load_toml

LIMITS = Limits(steps=20, step_s=10.0, episode_s=180.0, output_chars=6000)
TASKS = Path(__file__).parent / "tasks"
FIELDS = {"page", "start", "storage", "checks"}
PAGE = re.compile(r"[A-Za-z0-9_-]{1,100}")
START_CHARS = 2000
Fail = Callable[[str, str], TaskError]  # (field, what is wrong) -> the error that names its place


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
    if "pages" in fields:
        raise place.error("pages", f"unknown; a gui task has {', '.join(sorted(FIELDS))}")
    pages = (place.path.parent.parent / "pages").resolve()
    payload = check_payload(fields, place.error)
    _index(pages, payload["page"], place.error)
    return payload if pages == PAGES.resolve() else payload | {"pages": str(pages)}


def check_payload(fields: Any, fail: Fail) -> dict[str, Any]:
    """The fields of a task but `pages`, each of its kind.

    Raises:
        TaskError: made by `fail`.
    """
    if not isinstance(fields, dict):
        raise fail("payload", f"{fields!r:.100}: an object with page, checks and so on is needed")
    if unknown := sorted(set(fields) - FIELDS - {"pages"}):
        raise fail(unknown[0][:80], f"unknown; a gui task has {', '.join(sorted(FIELDS))}")
    page, start, storage = fields.get("page"), fields.get("start", ""), fields.get("storage", {})
    if not isinstance(page, str) or not PAGE.fullmatch(page):
        raise fail("page", f"{page!r:.100}: the name of a folder of pages is needed: letters, digits, '_', '-'")
    if not isinstance(start, str) or start.startswith("/") or "://" in start:
        raise fail("start", f"{start!r:.100}: what follows the site's address is needed, like '?x=1' or '#/inbox'")
    if len(start) > START_CHARS:
        raise fail("start", f"{len(start)} characters: {START_CHARS} are the most")
    if not isinstance(storage, dict) or not all(isinstance(value, str) for value in storage.values()):
        raise fail("storage", f"{storage!r:.100}: a table of texts is needed, as localStorage holds them")
    return {"page": page, "start": start, "storage": storage, "checks": _checks(fields.get("checks"), fail)}


def _checks(given: Any, fail: Fail) -> list[dict[str, str]]:
    if not isinstance(given, list) or not given:
        raise fail("checks", "at least one is needed, like {name = 'sent', js = 'app.state.sent.length === 1'}")
    names = set()
    for check in given:
        if not isinstance(check, dict) or not {"name", "js"} <= set(check) <= {"name", "js", "error"}:
            raise fail("checks", f"{check!r:.200}: name and js are needed, error is optional")
        if not all(isinstance(value, str) and value.strip() for value in check.values()):
            raise fail("checks", f"{check!r:.200}: texts are needed")
        if check.get("error", "fails") != "fails":
            raise fail("checks", f"error is {check['error']!r:.100}: only 'fails' is known")
        if check["name"] in names:
            raise fail("checks", f"the name {check['name']!r:.100} stands twice")
        names.add(check["name"])
    return [dict(check) for check in given]


def folder_of(given: Any, page: str, allowed: Path | None, fail: Fail) -> Path:
    """The folder of a page: in our own pages, or in the task's field `pages`, which must lie in `allowed` (None: any).

    Raises:
        TaskError: made by `fail`: there is no such page, or it is not served here.
    """
    if given is None or given == "":
        return _index(PAGES.resolve(), page, fail)
    if not isinstance(given, str) or "\0" in given:
        raise fail("pages", f"{given!r:.100}: the path of a folder is needed")
    try:
        pages = Path(given).resolve()
    except (OSError, RuntimeError) as error:  # a name too long, links in a circle
        raise fail("pages", f"{given!r:.100} can't be found: {type(error).__name__}") from error
    if allowed is not None and pages != PAGES.resolve() and not pages.is_relative_to(allowed.resolve()):
        raise fail("pages", f"{given!r:.200} is not served here: name a folder of the environment server's own pages")
    return _index(pages, page, fail)


def _index(pages: Path, page: str, fail: Fail) -> Path:
    """A page's folder, which holds index.html and is no link out of the pages."""
    folder = pages / page
    try:
        there = (folder / "index.html").is_file()
    except OSError:  # a name too long
        there = False
    if not there:
        raise fail("page", f"there is no {str(folder)[:300]}/index.html")
    if folder.resolve() != folder or not (folder / "index.html").resolve().is_relative_to(folder):
        raise fail("page", f"{page!r} leads out of {str(pages)[:300]} by a link: put the files themselves there")
    return folder
