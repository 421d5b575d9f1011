"""Entries of a task's `expert` and `wrong` lists, as actions.

What it does: an entry names its element by role and name, as a person would; it is looked up in the last observation.

    {do = "click", role = "button", name = "Save"}          # exactly this name; nth = 1: the second of several
    {do = "type", role = "textbox", name = "Email", text = "ann@example.com"}
    {do = "drag", role = "article", name = "Plan", to = {role = "region", name = "Done"}}
    {do = "done"}

What it leaves out: solutions that depend on what the page says.
"""

from typing import Any

from serve.environments.protocol import Action, Call, Observation
from serve.environments.tasks import TaskError


def expert_action(entry: dict[str, Any], observation: Observation) -> Action:
    """The action of one entry, given the observation before it.

    Raises:
        TaskError: the page shows no such element.
    """
    given = dict(entry)
    name = given.pop("do")
    arguments: dict[str, Any] = {}
    if "role" in given or "name" in given:
        which = {key: given.pop(key) for key in ("role", "name", "nth") if key in given}
        arguments["from" if name == "drag" else "element"] = _find(which, observation)
    if isinstance(given.get("to"), dict):
        arguments["to"] = _find(given.pop("to"), observation)
    return Action(text="", calls=(Call(name=name, arguments=arguments | given),))


def _find(which: dict[str, Any], observation: Observation) -> str:
    shown = observation.facts.get("elements", {})
    found = [
        element_id
        for element_id, one in shown.items()
        if which.get("role", one["role"]) == one["role"] and which.get("name", one["name"]) == one["name"]
    ]
    nth = which.get("nth", 0)
    if nth >= len(found):
        near = [f"{one['role']} {one['name']!r}" for one in shown.values()][:60]
        raise TaskError(f"the page shows no {which} (it shows {', '.join(near)})")
    return found[nth]
