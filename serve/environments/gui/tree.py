"""What a page holds, as lines of text: Chromium's own accessibility tree, made compact, with element ids.

What it does: `Ids` numbers elements ("e1", "e2", ...) by Chromium's node ids, so that an id stays with its element
while it lives and never comes again; `read` turns the accessibility tree into `Element`s and indented lines; `differ`
says which lines went and came.
What it leaves out: frames within the page; elements that the page hides from assistive technology.
"""

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# Chromium's names, where they are not ARIA's.
NAMES = {
    "Date": "date", "DateTime": "datetime", "InputTime": "time", "ColorWell": "color", "DisclosureTriangle": "button",
    "Details": "group", "Section": "region", "Pre": "paragraph", "Legend": "legend", "Canvas": "canvas",
    "Figcaption": "caption", "DescriptionListDetail": "definition", "DescriptionListTerm": "term",
    "PopUpButton": "combobox", "MenuListPopup": "options", "toggleButton": "button", "RootWebArea": "page",
    "image": "img",
}  # fmt: skip
ACTIVE = {
    "button", "link", "textbox", "searchbox", "checkbox", "radio", "switch", "combobox", "listbox", "option",
    "menuitem", "menuitemcheckbox", "menuitemradio", "tab", "spinbutton", "slider", "treeitem", "date", "datetime",
    "time", "color", "gridcell", "clickable",
}  # fmt: skip
# numbered where they have a name: things may be dropped there
PLACES = {"region", "list", "group", "article", "listbox", "grid", "log"}
HOLLOW = {
    "none", "generic", "presentation", "LabelText", "ListMarker", "LineBreak", "InlineTextBox", "options", "rowgroup",
}  # fmt: skip
CELLS = {"cell", "gridcell", "columnheader", "rowheader"}
LEAVES = {"textbox", "searchbox", "spinbutton", "date", "datetime", "time", "color", "slider", "canvas"}
INLINE = {"strong", "emphasis", "mark", "code", "Abbr", "superscript", "subscript", "insertion", "deletion"}
NAME_CHARS = 120  # of the name of an element that can be acted on
TEXT_CHARS = 1500  # of a text or a value
OPTIONS = 40  # of one select that are shown
DIFF_LINES = 40


@dataclass(slots=True)
class Ids:
    """Element ids of one episode."""

    _by_node: dict[tuple[str, int], str] = field(default_factory=dict)
    _by_id: dict[str, tuple[str, int]] = field(default_factory=dict)

    def of(self, document: str, node: int) -> str:
        """The id of a node of a document; a new one where it is seen for the first time."""
        key = (document, node)
        if key not in self._by_node:
            name = f"e{len(self._by_node) + 1}"
            self._by_node[key], self._by_id[name] = name, key
        return self._by_node[key]

    def known(self, name: str) -> bool:
        """Whether this id was ever given."""
        return name in self._by_id


@dataclass(frozen=True, slots=True)
class Element:
    """One element that an action can name."""

    element_id: str
    node: int  # Chromium's id of the DOM node
    role: str
    name: str

    @property
    def label(self) -> str:
        """For messages: button 'Save' [e12]."""
        name = f" '{_cut(self.name, 60)}'" if self.name else ""
        return f"{self.role}{name} [{self.element_id}]"


@dataclass(frozen=True, slots=True)
class Tree:
    """A page's content at one moment."""

    lines: tuple[str, ...]
    elements: dict[str, Element]  # in the order of the page


@dataclass(frozen=True, slots=True)
class Marks:
    """What the accessibility tree does not tell: which DOM nodes react to a click, and which can be dragged."""

    clickable: frozenset[int] = frozenset()
    draggable: frozenset[int] = frozenset()

    @classmethod
    def read(cls, snapshot: dict[str, Any]) -> "Marks":
        """From the answer of DOMSnapshot.captureSnapshot."""
        strings, nodes = snapshot["strings"], snapshot["documents"][0]["nodes"]
        backend, names = nodes["backendNodeId"], nodes["nodeName"]
        clickable = {
            backend[index]
            for index in nodes.get("isClickable", {}).get("index", ())
            if strings[names[index]] not in ("BODY", "HTML", "#document")
        }
        draggable = set()
        for index, flat in enumerate(nodes.get("attributes", ())):
            pairs = zip(flat[::2], flat[1::2], strict=False)
            if any(strings[name] == "draggable" and strings[value] == "true" for name, value in pairs):
                draggable.add(backend[index])
        return cls(frozenset(clickable), frozenset(draggable))


def read(nodes: list[dict[str, Any]], marks: Marks, ids: Ids, document: str) -> Tree:
    """The tree of a page from the nodes of Accessibility.getFullAXTree."""
    reader = _Reader({node["nodeId"]: node for node in nodes}, marks, ids, document)
    if nodes:
        reader.children(nodes[0], 0)
    return Tree(tuple(reader.lines), reader.elements)


class _Reader:
    def __init__(self, nodes: dict[str, dict[str, Any]], marks: Marks, ids: Ids, document: str) -> None:
        self.nodes, self.marks, self.ids, self.document = nodes, marks, ids, document
        self.lines: list[str] = []
        self.name_before = ""  # of the line above: a text that only repeats it is left out
        self.elements: dict[str, Element] = {}

    def children(self, node: dict[str, Any], depth: int, named: str = "") -> None:
        """The lines of a node's children; texts that stand in the name `named` already are left out."""
        run: list[str] = []
        in_row = _role(node) == "row"
        for child in self.flat(node):
            if (text := self.text_of(child)) is not None:
                run.append(text)
                continue
            self.text_line(run, depth, named)
            if in_row and _role(child) in CELLS and not self.own(child) and self.only_text(child) is not None:
                continue  # in the row's line already
            self.node(child, depth, named)
        self.text_line(run, depth, named)

    def text_line(self, run: list[str], depth: int, named: str) -> None:
        text = _fold(" ".join(run))
        run.clear()
        if text and text not in named and text != self.name_before:
            self.lines.append(f"{'  ' * depth}- text {_quote(text)}")

    def flat(self, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A node's children, with those of hollow nodes in their place."""
        for child_id in node.get("childIds", ()):
            child = self.nodes.get(child_id)
            if child is None:
                continue
            role = _role(child)
            if role == "LabelText":  # its text is the name of its control
                yield from (inner for inner in self.flat(child) if self.text_of(inner) is None)
            elif self.hollow(child, role):
                yield from self.flat(child)
                if role != "none" and not child.get("ignored"):
                    yield {"role": {"value": "break"}}
            else:
                yield child

    def hollow(self, node: dict[str, Any], role: str) -> bool:
        if node.get("ignored"):
            return True
        number = node.get("backendDOMNodeId")
        return role in HOLLOW and number not in self.marks.clickable and number not in self.marks.draggable

    def text_of(self, node: dict[str, Any]) -> str | None:
        """The text of a node that is nothing but text."""
        role = _role(node)
        if role == "StaticText":
            return _name(node)
        if role in INLINE and node.get("backendDOMNodeId") not in self.marks.clickable:
            parts = [self.text_of(child) for child in self.flat(node)]
            return None if None in parts else "".join(part for part in parts if part is not None)
        return None

    def node(self, node: dict[str, Any], depth: int, above: str = "") -> None:
        """The line of a node, and those of its children."""
        role = _role(node)
        if role == "break":
            return
        number = node.get("backendDOMNodeId")
        role = "clickable" if role in HOLLOW | INLINE else NAMES.get(role, role)
        properties = {one["name"]: one["value"].get("value") for one in node.get("properties", ())}
        name, inside = _fold(_name(node)), self.only_text(node)
        if role == "row":
            name, inside = self.cells(node), None
        elif not name and inside:
            name = inside
        numbered = number is not None and self.numbered(role, name, number, properties)
        if role in CELLS and not numbered and inside is None:
            return self.children(node, depth)  # its name only repeats what stands in it
        if not numbered and inside is not None and (not name or name == above):
            return None
        shown = f"- {role}" + (f" {_quote(name, NAME_CHARS if numbered else TEXT_CHARS)}" if name else "")
        if numbered:
            element = Element(self.ids.of(self.document, number), number, role, name[:200])
            self.elements[element.element_id] = element
            shown += f" [{element.element_id}]"
        shown += "".join(f" {state}" for state in self.states(node, role, properties, name))
        self.lines.append("  " * depth + shown)
        self.name_before = name
        shut = role in LEAVES or (role in ACTIVE and inside is not None) or (role == "combobox" and self.options(node))
        if not shut and inside != name:
            self.children(node, depth + 1, name)
        return None

    def only_text(self, node: dict[str, Any]) -> str | None:
        """What stands in a node, if that is nothing but text (or nothing at all)."""
        texts = [self.text_of(child) for child in self.flat(node) if _role(child) != "break"]
        return None if None in texts else _fold(" ".join(text for text in texts if text))

    def cells(self, row: dict[str, Any]) -> str:
        """The texts of a row's cells that are nothing but text; those stand in the row's own line."""
        cells = [cell for cell in self.flat(row) if _role(cell) in CELLS and not self.own(cell)]
        return " | ".join(text for text in map(self.only_text, cells) if text)

    def own(self, node: dict[str, Any]) -> bool:
        """Whether a cell is an element that can be acted on."""
        properties = {one["name"]: one["value"].get("value") for one in node.get("properties", ())}
        return self.numbered(_role(node), "", node.get("backendDOMNodeId", -1), properties)

    def numbered(self, role: str, name: str, number: int, properties: dict[str, Any]) -> bool:
        if role in ACTIVE - {"gridcell"} or (role in PLACES and name):
            return True
        return bool(properties.get("focusable")) or number in self.marks.clickable | self.marks.draggable

    def states(self, node: dict[str, Any], role: str, properties: dict[str, Any], name: str) -> Iterator[str]:
        value = node.get("value", {}).get("value")
        if value not in (None, "") and role not in ("checkbox", "radio", "switch", "option", "link", "button"):
            yield f"value={_quote(str(properties.get('valuetext') or value))}"
        if role == "combobox" and (options := self.options(node)):
            more = f" and {len(options) - OPTIONS} more" if len(options) > OPTIONS else ""
            yield "options=" + "|".join(_quote(one) for one in options[:OPTIONS]) + more
        for key, words in STATES.items():
            word = words.get(str(properties.get(key)).lower())
            if word and not (key == "expanded" and self.options(node)):
                yield word
        if role == "slider":
            yield f"from {properties.get('valuemin', 0):g} to {properties.get('valuemax', 0):g}"
        if properties.get("invalid") not in (None, "false", False):
            yield "invalid"
        described = _fold(node.get("description", {}).get("value") or "")
        if described and described != name:
            yield f"description={_quote(described)}"
        if node.get("backendDOMNodeId") in self.marks.draggable:
            yield "draggable"

    def options(self, node: dict[str, Any]) -> list[str]:
        """The options of a closed select."""
        for child_id in node.get("childIds", ()):
            child = self.nodes.get(child_id, {})
            if _role(child) == "MenuListPopup":
                return [
                    _fold(_name(one)) + (" (disabled)" if _is(one, "disabled") and not _is(node, "disabled") else "")
                    for one in self.under(child)
                    if _role(one) in ("option", "menuitem", "MenuListOption")
                ]
        return []

    def under(self, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for child_id in node.get("childIds", ()):
            if child := self.nodes.get(child_id):
                yield child
                yield from self.under(child)


STATES = {
    "checked": {"true": "checked", "false": "unchecked", "mixed": "partly checked"},
    "pressed": {"true": "pressed", "false": "unpressed", "mixed": "partly pressed"},
    "selected": {"true": "selected"},
    "expanded": {"true": "expanded", "false": "collapsed"},
    "disabled": {"true": "disabled"},
    "readonly": {"true": "readonly"},
    "required": {"true": "required"},
    "focused": {"true": "focused"},
}


def _role(node: dict[str, Any]) -> str:
    return node.get("role", {}).get("value") or "none"


def _name(node: dict[str, Any]) -> str:
    return node.get("name", {}).get("value") or ""


def _is(node: dict[str, Any], name: str) -> bool:
    return any(one["name"] == name and one["value"].get("value") for one in node.get("properties", ()))


def _fold(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _quote(text: str, most: int = TEXT_CHARS) -> str:
    return json.dumps(_cut(text, most), ensure_ascii=False)


def differ(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    """The lines that went ("- ") and came ("+ "), without their indentation, in the order of the page."""
    old, new = [line.strip() for line in before], [line.strip() for line in after]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    changes: list[str] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            changes += [f"-{line[1:]}" for line in old[a:b]] + [f"+{line[1:]}" for line in new[c:d]]
    return tuple(changes)


def within(lines: tuple[str, ...], chars: int, what: str) -> list[str]:
    """As many lines as fit, with a note on those left out."""
    kept, used = [], 0
    for line in lines:
        used += len(line) + 1
        if used > chars:
            return [*kept, f"[{len(lines) - len(kept)} more lines of {what} left out]"]
        kept.append(line)
    return kept
