"""What a policy is told: the track's functions, and system prompts for models that call tools and for those that don't.

What it does: OpenAI function declarations of the actions in `actions.py`, and two short prompts.
What it leaves out: the task's instruction and the observations, which the driver adds.
"""

from typing import Any

from serve.environments.gui.actions import WAIT_S

_ID = {"type": "string", "description": 'The id of an element of the page, like "e12".'}


Schema = dict[str, Any]


def _tool(name: str, description: str, needed: Schema, optional: Schema | None = None) -> Schema:
    parameters = {"type": "object", "properties": needed | (optional or {}), "required": list(needed)}
    function = {"name": name, "description": description, "parameters": parameters | {"additionalProperties": False}}
    return {"type": "function", "function": function}


TOOLS: list[dict[str, Any]] = [
    _tool("click", "Click an element.", {"element": _ID}),
    _tool("double_click", "Double-click an element.", {"element": _ID}),
    _tool(
        "type",
        "Type text into a text field. What it held is replaced unless clear is false. Dates: 2026-03-31; times: 14:30.",
        {"element": _ID, "text": {"type": "string"}},
        {"clear": {"type": "boolean", "description": "false: the text is added at the end. Default: true."}},
    ),
    _tool(
        "key",
        "Press a key, such as Enter, Escape, Tab, ArrowDown, F2, Delete, a character, or Shift+ArrowDown.",
        {"key": {"type": "string"}},
        {"element": _ID | {"description": "The element that gets the key. Default: the one with the focus."}},
    ),
    _tool(
        "scroll",
        "Scroll the page, or the area around an element.",
        {"direction": {"type": "string", "enum": ["up", "down", "left", "right"]}},
        {"element": _ID},
    ),
    _tool(
        "select",
        "Choose an option of a select box (a combobox with options) by its text; a list where it takes several.",
        {
            "element": _ID,
            "option": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
        },
    ),
    _tool("drag", "Drag an element and drop it on another.", {"from": _ID, "to": _ID}),
    _tool("hover", "Move the mouse over an element.", {"element": _ID}),
    _tool("back", "Go back to the page before.", {}),
    _tool(
        "wait",
        "Wait for a page that is still working.",
        {},
        {"seconds": {"type": "number", "description": f"At most {WAIT_S:g}. Default: 1."}},
    ),
    _tool("done", "Say that the task is done. Nothing can be changed after it.", {}),
]

_PAGE = """You use a web page to do the user's task. After each action you see what it changed and what the page \
holds: one line for each element, with its role, its name, its id in brackets and its state, such as
- textbox "Email" [e4] value="ann@example.com" required
- checkbox "Newsletter" [e5] unchecked
Ids belong to elements and stay the same. The page's own boxes (alert, confirm) are answered with OK and shown to \
you. """

SYSTEM = _PAGE + "Act by calling the functions. When the task is done, call done."

SYSTEM_PLAIN = (
    _PAGE
    + """Answer with one action, alone on the last line:
click e12
double_click e12
type e4 "new text"
type e4 + "text added at the end"
key Enter
key ArrowDown e4
scroll down
select e7 "Blue"
drag e3 e9
hover e12
back
wait 1
done
Write done when the task is done."""
)

EXAMPLE_PLAIN = (
    'Press the button Save.\n\npage "Note" /\n- textbox "Text" [e1] value=""\n'
    '- button "Save" [e2]\n- button "Close" [e3]',
    "click e2",
    "clicked button 'Save' [e2]\nchanged:\n+ status \"Saved\"",
    "done",
)
