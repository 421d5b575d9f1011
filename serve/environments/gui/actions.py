"""The actions of the track: what each takes, and how it is carried out.

What it does: `carry_out` checks a call's arguments and does it, as a hand with mouse and keyboard would where that is
possible; it returns the sentence that says what happened. `Fault` is what the policy did wrong: nothing was changed.
What it leaves out: copy and paste (the clipboard is the browser's, and would pass from one episode to another), files.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from serve.environments.gui import elements
from serve.environments.gui.browser import first_line
from serve.environments.gui.tree import Element
from serve.environments.gui.window import Gone, Window
from serve.environments.protocol import Call

TEXT_CHARS = 2000  # of one `type`
TYPED_CHARS = 120  # typed key by key; longer texts are put in at once
MAX_OPTIONS = 100  # of one `select`
SHOWN_CHARS = 80  # of what the policy wrote, where a fault repeats it
WAIT_S = 5.0
KEYS = {
    "Enter", "Escape", "Tab", "Space", "Backspace", "Delete", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home",
    "End", "PageUp", "PageDown", "F2",
}  # fmt: skip
SPELLINGS = {
    "esc": "Escape", "return": "Enter", "del": "Delete", "up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft",
    "right": "ArrowRight", "ctrl": "Control", " ": "Space",
}  # fmt: skip
MODIFIERS = {"Control", "Shift", "Alt"}
WITH_CONTROL = set("abeiklsuyz")  # neither the clipboard's letters nor the browser's own (new window, close, ...)
_HALF = re.compile(r"[\ud800-\udfff]")
DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


class Fault(Exception):
    """What the policy asked for can't be done; nothing was changed."""


class Hand:
    """Carries out calls in a window. `shown` are the elements of the last observation."""

    def __init__(self, window: Window, shown: dict[str, Element], step_s: float) -> None:
        self.window, self.shown, self.step_s = window, shown, step_s
        self.mouse, self.keyboard = window.page.mouse, window.page.keyboard

    async def carry_out(self, call: Call) -> str:
        """Do one call; what happened, as a sentence.

        Raises:
            Fault: it can't be done, and why.
        """
        from playwright.async_api import Error

        entry = ACTIONS.get(call.name)
        if entry is None:
            raise Fault(f"there is no action {_short(call.name)}; there are {', '.join(ACTIONS)}")
        takes, act = entry
        given = {key: value for key, value in call.arguments.items() if value is not None}
        if unknown := sorted(set(given) - set(takes)):
            raise Fault(f"{call.name} takes no {_short(unknown[0])}; it takes {', '.join(takes) or 'nothing'}")
        for key, (kind, needed) in takes.items():
            if key not in given and needed:
                raise Fault(f"{call.name} needs {key!r} ({KINDS[kind]})")
            if key in given and not _is(given[key], kind):
                raise Fault(f"{call.name}: {key} is {_short(given[key])}: {KINDS[kind]} is needed")
            if key in given and any(_HALF.search(text) for text in _texts(given[key])):
                raise Fault(f"{call.name}: {key} holds half of a surrogate pair, which is no character")
        try:
            return await act(self, **{PARAMETERS.get(key, key): value for key, value in given.items()})
        except Gone as gone:
            raise Fault("the element is no longer on the page") from gone
        except Error as error:  # what Playwright refuses of a page that is alive was asked for wrongly
            await self.window.check_alive(error)
            raise Fault(f"{call.name}: it can't be done: {first_line(error)}") from error

    def element(self, element_id: str) -> Element:
        """The element of an id; "[e12]" and "12" are read as "e12"."""
        name = element_id.strip().strip("[]")
        name = f"e{name}" if name.isdigit() else name
        if found := self.shown.get(name):
            return found
        if self.window.ids.known(name):
            raise Fault(f"{name} is no longer on the page")
        like = next(iter(self.shown), "e1")
        raise Fault(f"there is no element {_short(element_id)}: use an id that the page shows, like {like}")

    async def point(self, element: Element, usable: bool = True) -> tuple[float, float]:
        """Where the element can be pointed at; scrolls it into view."""
        answer = await self.window.call(element, elements.POINT, usable)
        if "fault" in answer:
            raise Fault(f"{element.label} {answer['fault']}")
        return answer["x"], answer["y"]

    async def click(self, element: str) -> str:
        return await self._click(element, 1)

    async def double_click(self, element: str) -> str:
        return await self._click(element, 2)

    async def _click(self, element: str, times: int) -> str:
        found = self.element(element)
        if found.role == "option" and await self.window.call(found, elements.IN_SELECT):
            raise Fault(f"{found.label} is an option of a select box: use the action select on its box")
        x, y = await self.point(found)
        await self.mouse.click(x, y, click_count=times)
        return f"{'double-' if times == 2 else ''}clicked {found.label}"

    async def type(self, element: str, text: str, clear: bool = True) -> str:
        found = self.element(element)
        if len(text) > TEXT_CHARS:
            raise Fault(f"the text has {len(text)} characters: at most {TEXT_CHARS} can be typed at once")
        answer = await self.window.call(found, elements.TYPING)
        if "fault" in answer:
            raise Fault(f"{found.label} {answer['fault']}")
        x, y = await self.point(found)
        if answer["kind"] == "value":
            answer = await self.window.call(found, elements.SET_VALUE, text)
            if "fault" in answer:
                raise Fault(f"{found.label} {answer['fault']}")
            return f'set {found.label} to "{text}"'
        await self.mouse.click(x, y)
        await self.window.call(found, elements.FOCUS, clear)
        if clear and text == "":
            await self.keyboard.press("Delete")
            return f"emptied {found.label}"
        if len(text) <= TYPED_CHARS:
            await self.keyboard.type(text)
        else:
            await self.keyboard.insert_text(text)
        return f'typed "{text}" into {found.label}'

    async def key(self, key: str, element: str | None = None) -> str:
        name = _key(key)
        where = ""
        if element is not None:
            found = self.element(element)
            await self.point(found, False)
            if not await self.window.call(found, elements.TAKE_KEYS):
                raise Fault(f"{found.label} takes no keys")
            where = f" on {found.label}"
        if len(name) == 1 and not name.isascii():
            await self.keyboard.insert_text(name)  # a character that no key of the keyboard has
        else:
            await self.keyboard.press(name)
        return f"pressed {name}{where}"

    async def scroll(self, direction: str, element: str | None = None) -> str:
        if direction not in DIRECTIONS:
            raise Fault(f"scroll: direction is {_short(direction)}: one of {', '.join(DIRECTIONS)} is needed")
        x, y = DIRECTIONS[direction]
        found = self.element(element) if element is not None else None
        if found is not None:
            answer = await self.window.call(found, elements.SCROLL, x * 0.8, y * 0.8)
        else:
            answer = await self.window.scroll_page(x * 0.8, y * 0.8)
        where = f" in {found.label}" if found else ""
        if not answer["moved"]:
            return f"scrolled {direction}{where}: it does not go any further"
        return f"scrolled {direction}{where} by {answer['moved']} pixels"

    async def select(self, element: str, option: str | list[str]) -> str:
        found = self.element(element)
        if isinstance(option, list) and len(option) > MAX_OPTIONS:
            raise Fault(f"select: {len(option)} options: {MAX_OPTIONS} at once are the most")
        await self.point(found)
        answer = await self.window.call(found, elements.SELECT, [option] if isinstance(option, str) else option)
        if "fault" in answer:
            raise Fault(f"{found.label} {answer['fault']}")
        return f"chose {', '.join(repr(one) for one in answer['chosen']) or 'nothing'} in {found.label}"

    async def drag(self, start: str, to: str) -> str:
        source, target = self.element(start), self.element(to)
        x, y = await self.point(source)
        await self.point(target)
        x, y = await self.point(source)  # again: the target may have been scrolled to
        spot = await self.window.call(target, elements.MIDDLE)
        await self.mouse.move(x, y)
        await self.mouse.down()
        await self.mouse.move((x + spot["x"]) / 2, (y + spot["y"]) / 2, steps=3)
        await self.mouse.move(spot["x"], spot["y"], steps=3)
        await self.mouse.up()
        return f"dragged {source.label} to {target.label}"

    async def hover(self, element: str) -> str:
        found = self.element(element)
        await self.mouse.move(*await self.point(found, False))
        return f"moved the mouse over {found.label}"

    async def back(self) -> str:
        if not await self.window.can_go_back():
            raise Fault("there is no page to go back to")
        await self.window.page.go_back(wait_until="commit", timeout=self.step_s * 1000)
        return "went back"

    async def wait(self, seconds: float = 1.0) -> str:
        if not 0 < seconds <= WAIT_S:
            raise Fault(f"wait: seconds is {seconds!r}: above 0 and at most {WAIT_S:g} is needed")
        await asyncio.sleep(min(seconds, self.step_s / 2))
        return f"waited {seconds:g} s"

    async def done(self) -> str:
        return "said that the task is done"


KINDS = {
    "id": 'an element id like "e12"',
    "text": "a text",
    "texts": "a text or a list of texts",
    "flag": "true or false",
    "number": "a number",
}
PARAMETERS = {"from": "start"}  # "from" is Python's own word
Takes = dict[str, tuple[str, bool]]  # argument -> (kind, whether it is needed)
ACTIONS: dict[str, tuple[Takes, Callable[..., Awaitable[str]]]] = {
    "click": ({"element": ("id", True)}, Hand.click),
    "double_click": ({"element": ("id", True)}, Hand.double_click),
    "type": ({"element": ("id", True), "text": ("text", True), "clear": ("flag", False)}, Hand.type),
    "key": ({"key": ("text", True), "element": ("id", False)}, Hand.key),
    "scroll": ({"direction": ("text", True), "element": ("id", False)}, Hand.scroll),
    "select": ({"element": ("id", True), "option": ("texts", True)}, Hand.select),
    "drag": ({"from": ("id", True), "to": ("id", True)}, Hand.drag),
    "hover": ({"element": ("id", True)}, Hand.hover),
    "back": ({}, Hand.back),
    "wait": ({"seconds": ("number", False)}, Hand.wait),
    "done": ({}, Hand.done),
}


def _is(value: Any, kind: str) -> bool:
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "flag":
        return isinstance(value, bool)
    if kind == "texts" and isinstance(value, list):
        return bool(value) and all(isinstance(one, str) for one in value)
    return isinstance(value, str)


def _texts(value: Any) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def _short(value: Any) -> str:
    """A value that the policy wrote, cut."""
    if isinstance(value, list) and len(value) > 5:
        return f"{_short(value[:5])} and {len(value) - 5} more"
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}... ({len(text)} characters)"


def _key(written: str) -> str:
    """A key or a chord as Playwright spells it."""
    parts = [written] if len(written) == 1 else re.split(r"\+(?=.)", written)
    parts = [SPELLINGS.get(part.lower(), part) for part in parts]
    names = {name.lower(): name for name in KEYS | MODIFIERS}
    parts = [part if len(part) == 1 else names.get(part.lower(), part) for part in parts]
    *held, key = parts
    if unknown := [one for one in held if one not in MODIFIERS]:
        raise Fault(f"key: {_short(unknown[0])} can't be held down; Control, Shift, Alt can")
    if key not in KEYS and not (len(key) == 1 and key.isprintable()):
        raise Fault(f"key: {_short(written)} is unknown; known are single characters and {', '.join(sorted(KEYS))}")
    if held and not key.isascii():
        raise Fault(f"key: {_short(written)} is unknown: {key} is on no key, so nothing can be held down with it")
    if "Control" in held and len(key) == 1 and key.lower() not in WITH_CONTROL:
        raise Fault(f"key: {written!r} is not available here")
    if "Alt" in held and key in ("ArrowLeft", "ArrowRight", "Home"):
        raise Fault(f"key: {written!r} is not available here; use the action back")
    return "+".join(parts)
