"""Actions and what is seen of them, in a real browser."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from serve.environments.gui.browser import Browser
from serve.environments.gui.environment import GuiEnvironment
from serve.environments.protocol import Action, Call, Observation, StepResult
from tests.unit.serve.environments.gui.building import act, find, make_task

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = """
<button id=go onclick="n.textContent = Number(n.textContent) + 1">Go</button> <p>Count: <b id=n>0</b></p>
<button disabled>Never</button> <button style="display: none" id=h>Hidden</button>
<label>Name <input id=name oninput="seen.textContent = this.value"></label> <p>Seen: <span id=seen></span></p>
<label>Colour <select id=colour><option>Red<option>Green<option disabled>Blue</select></label>
<label><input type=checkbox id=box> Box</label> <label>Day <input type=date id=day></label>
<input aria-label=Fixed readonly value=x>
<button onclick="n.textContent = confirm('Sure?') + ' ' + prompt('Who?', 'me')">Ask</button>
<button onclick="alert('Hello there')">Tell</button>
<div id=pad tabindex=0 role=button aria-label=Pad onkeydown="n.textContent = event.key" 
  onmouseover="h.style.display = ''">pad</div>
<div onclick="n.textContent = 'plain'">plain div</div> <a href="#two">Two</a>
<button ondblclick="n.textContent = 'twice'">Twice</button>
"""


@pytest_asyncio.fixture(loop_scope="module")
async def environment(browser: Browser) -> AsyncIterator[GuiEnvironment]:
    environment = GuiEnvironment(browser)
    yield environment
    await environment.close()


class Played:
    """An environment with the last observation."""

    def __init__(self, environment: GuiEnvironment, observation: Observation) -> None:
        self.environment, self.seen = environment, observation

    async def do(self, name: str, role: str = "", element: str = "", **arguments: object) -> StepResult:
        given = {"element": find(self.seen, role, element)} if role else {}
        result = await self.environment.step(act(name, **given, **arguments))
        self.seen = result.observation
        return result


@pytest_asyncio.fixture(loop_scope="module")
async def page(environment: GuiEnvironment, tmp_path: Path) -> Played:
    return Played(environment, await environment.reset(make_task(tmp_path, PAGE)))


def first(result: StepResult) -> str:
    return result.observation.text.splitlines()[0]


async def test_the_first_observation_shows_tree_picture_and_facts(page: Played) -> None:
    assert page.seen.text.startswith('page "Test" /')
    assert 'textbox "Name"' in page.seen.text and 'checkbox "Box"' in page.seen.text and "Hidden" not in page.seen.text
    assert 'options="Red"|"Green"|"Blue (disabled)"' in page.seen.text and 'button "Never"' in page.seen.text
    assert page.seen.images[0].startswith(b"\x89PNG")
    assert page.seen.facts["url"] == "http://task.local/" and page.seen.facts["title"] == "Test"


async def test_a_click_says_what_happened_and_what_changed(page: Played) -> None:
    go = find(page.seen, "button", "Go")
    result = await page.do("click", "button", "Go")
    lines = result.observation.text.splitlines()
    assert lines[0] == f"clicked button 'Go' [{go}]" and lines[1] == "changed:"
    assert '+ paragraph "Count: 1"' in lines and '- paragraph "Count: 0"' in lines
    assert '+ paragraph "Count: 1"' in result.observation.facts["tree_diff"]
    assert 0 < result.observation.facts["pixels_changed"] < 0.05 and result.observation.facts["changed"]
    assert not result.done


async def test_ids_stay_with_their_elements_and_are_not_given_again(
    environment: GuiEnvironment, tmp_path: Path
) -> None:
    html = """<div id=list><button>A</button><button>B</button></div>
    <button onclick="list.firstChild.remove();
      list.insertAdjacentHTML('beforeend', '<button>C</button>')">Turn</button>"""
    seen = await environment.reset(make_task(tmp_path, html))
    a, b, turn = (find(seen, "button", name) for name in ("A", "B", "Turn"))
    seen = (await environment.step(act("click", element=turn))).observation
    assert find(seen, "button", "B") == b and find(seen, "button", "C") not in (a, b, turn)
    assert a not in seen.facts["elements"]
    gone = await environment.step(act("click", element=a))
    assert f"nothing was done: {a} is no longer on the page" in gone.observation.text
    assert not gone.observation.facts["changed"]


async def test_an_id_survives_a_change_of_its_name(environment: GuiEnvironment, tmp_path: Path) -> None:
    seen = await environment.reset(make_task(tmp_path, "<button onclick=\"this.textContent = 'Off'\">On</button>"))
    before = find(seen, "button", "On")
    seen = (await environment.step(act("click", element=before))).observation
    assert find(seen, "button", "Off") == before


async def test_typing_replaces_or_adds(page: Played) -> None:
    await page.do("type", "textbox", "Name", text="Ann")
    assert 'paragraph "Seen: Ann"' in page.seen.text
    await page.do("type", "textbox", "Name", text="Bo")
    assert 'paragraph "Seen: Bo"' in page.seen.text
    await page.do("type", "textbox", "Name", text="b é", clear=False)
    assert 'paragraph "Seen: Bob é"' in page.seen.text
    await page.do("type", "textbox", "Name", text="")
    assert 'paragraph "Seen:"' in page.seen.text


async def test_select_check_date_keys_double_click_hover(page: Played) -> None:
    await page.do("select", "combobox", "Colour", option="Green")
    await page.do("click", "checkbox", "Box")
    await page.do("type", "date", "Day", text="2026-05-14")
    assert 'value="Green"' in page.seen.text and 'checkbox "Box" [' in page.seen.text and "] checked" in page.seen.text
    assert 'value="2026-05-14"' in page.seen.text
    await page.do("key", "button", "Pad", key="ArrowDown")
    assert 'paragraph "Count: ArrowDown"' in page.seen.text
    await page.do("double_click", "button", "Twice")
    assert 'paragraph "Count: twice"' in page.seen.text
    await page.do("hover", "button", "Pad")
    assert 'button "Hidden"' in page.seen.text


async def test_an_element_that_only_has_a_click_listener_can_be_clicked(page: Played) -> None:
    await page.do("click", "clickable", "plain div")
    assert 'paragraph "Count: plain"' in page.seen.text


async def test_boxes_are_answered_and_told(page: Played) -> None:
    result = await page.do("click", "button", "Tell")
    assert 'the page said in an alert box: "Hello there"' in result.observation.text
    result = await page.do("click", "button", "Ask")
    assert '"Sure?" (answered OK)' in result.observation.text and '"Who?" (answered "me")' in result.observation.text
    assert 'paragraph "Count: true me"' in result.observation.text


@pytest.mark.parametrize(
    ("action", "fault"),
    [
        (act("click", element="e999"), "there is no element 'e999'"),
        (act("click"), "click needs 'element'"),
        (act("click", element=7), "element is 7: an element id"),
        (act("click", element="e1", force=True), "click takes no 'force'"),
        (act("fly"), "there is no action 'fly'"),
        (act("key", key="Banana"), "key: 'Banana' is unknown"),
        (act("key", key="Control+W"), "is not available here"),
        (act("scroll", direction="sideways"), "one of up, down, left, right is needed"),
        (act("wait", seconds=100), "at most 5 is needed"),
        (act("back"), "there is no page to go back to"),
        (Action(text="hm", fault="not readable"), "not readable"),
        (Action(text="I think"), "the answer holds no action"),
    ],
)
async def test_a_faulty_action_is_named_and_changes_nothing(page: Played, action: Action, fault: str) -> None:
    result = await page.environment.step(action)
    assert first(result).startswith("nothing was done: ") and fault in first(result)
    assert not result.observation.facts["changed"] and result.observation.facts["tree_diff"] == [] and not result.done


@pytest.mark.parametrize(
    ("name", "role", "element", "arguments", "fault"),
    [
        ("click", "button", "Never", {}, "is disabled"),
        ("type", "button", "Go", {"text": "x"}, "takes no text"),
        ("type", "textbox", "Fixed", {"text": "x"}, "is read-only"),
        ("type", "date", "Day", {"text": "14 May"}, "write it like 2026-03-31"),
        ("select", "combobox", "Colour", {"option": "Pink"}, 'it has "Red", "Green", "Blue"'),
        ("select", "combobox", "Colour", {"option": "Blue"}, "it is disabled"),
        ("select", "button", "Go", {"option": "Red"}, "is no select box"),
    ],
)
async def test_an_element_that_can_not_do_it_says_why(
    page: Played, name: str, role: str, element: str, arguments: dict, fault: str
) -> None:
    assert fault in first(await page.do(name, role, element, **arguments))


async def test_a_hidden_or_covered_element_is_a_fault(environment: GuiEnvironment, tmp_path: Path) -> None:
    html = """<button onclick="b.style.visibility = 'hidden'">Hide</button><button id=b>Later</button>
    <button onclick="document.body.insertAdjacentHTML('beforeend',
      '<div id=cover style=\\'position:fixed;inset:0;background:#fffa\\'>Wall</div>')">Cover</button>"""
    seen = await environment.reset(make_task(tmp_path, html))
    hide, later, cover = (find(seen, "button", name) for name in ("Hide", "Later", "Cover"))
    two = (Call(name="click", arguments={"element": hide}), Call(name="click", arguments={"element": later}))
    result = await environment.step(Action(text="", calls=two))
    lines = result.observation.text.splitlines()
    assert lines[0].startswith("clicked button 'Hide'") and lines[1].startswith("what follows was not done: ")
    assert "is hidden" in lines[1]
    await environment.step(act("click", element=cover))
    assert 'is covered by something else ("Wall")' in first(await environment.step(act("click", element=hide)))


async def test_back_follows_the_history_of_the_site_only(page: Played) -> None:
    await page.do("click", "link", "Two")
    assert page.seen.facts["url"] == "http://task.local/#two"
    await page.do("back")
    assert page.seen.facts["url"] == "http://task.local/"
    assert "no page to go back to" in first(await page.do("back"))


async def test_drag_and_scroll(environment: GuiEnvironment, tmp_path: Path) -> None:
    html = """<div draggable=true tabindex=0 role=button aria-label=Card style="width:90px">card</div>
    <section aria-label=Bin style="height:90px" ondragover="event.preventDefault()"
      ondrop="out.textContent = 'dropped'">bin</section>
    <p id=out>waiting</p><div style="height:3000px"></div><button>Bottom</button>"""
    seen = await environment.reset(make_task(tmp_path, html))
    card, bin_ = find(seen, "button", "Card"), find(seen, "region", "Bin")
    result = await environment.step(act("drag", from_=card, to=bin_))
    assert 'paragraph "dropped"' in result.observation.text
    assert "scrolled down by" in first(await environment.step(act("scroll", direction="down")))
    assert "scrolled up by" in first(await environment.step(act("scroll", direction="up")))
    assert "does not go any further" in first(await environment.step(act("scroll", direction="up")))
    result = await environment.step(act("click", element=find(seen, "button", "Bottom")))
    assert first(result).startswith("clicked button 'Bottom'") and result.observation.facts["pixels_changed"] > 0


async def test_done_ends_the_episode_and_several_calls_are_done_in_order(page: Played) -> None:
    go = Call(name="click", arguments={"element": find(page.seen, "button", "Go")})
    result = await page.environment.step(Action(text="", calls=(go, go, Call(name="done", arguments={}), go)))
    assert result.done and 'paragraph "Count: 2"' in result.observation.text
    assert (await page.environment.step(act("done"))).done


async def test_a_long_page_is_cut_with_a_note(environment: GuiEnvironment, tmp_path: Path) -> None:
    task = make_task(tmp_path, "".join(f"<button>Button {n}</button>" for n in range(300)), output_chars=1000)
    seen = await environment.reset(task)
    assert len(seen.text) < 1100 and "more lines of the page left out]" in seen.text
    assert len(seen.facts["elements"]) == 300


async def test_a_slow_answer_of_the_page_is_waited_for(environment: GuiEnvironment, tmp_path: Path) -> None:
    html = """<button onclick="fetch('data.txt').then(r => r.text()).then(t => out.textContent = t)">Load</button>
    <p id=out>-</p>"""
    task = make_task(tmp_path, html)
    (tmp_path / "page" / "data.txt").write_text("loaded text")
    seen = await environment.reset(task)
    result = await environment.step(act("click", element=find(seen, "button", "Load")))
    assert 'paragraph "loaded text"' in result.observation.text


async def test_clock_and_chance_are_the_same_in_every_episode(environment: GuiEnvironment, tmp_path: Path) -> None:
    task = make_task(tmp_path, "<p id=p></p><script>p.textContent = new Date().toISOString() + Math.random()</script>")
    one, two = (await environment.reset(task)).text, (await environment.reset(task)).text
    assert one == two and "2026-03-02T09:00:00.000Z" in one


async def test_checks_see_page_and_storage(environment: GuiEnvironment, tmp_path: Path) -> None:
    checks = [
        {"name": "a variable", "js": "state.x === 1"},
        {"name": "storage", "js": "localStorage.getItem('k') === 'v'"},
        {"name": "later", "js": "new Promise(done => setTimeout(() => done(document.title === 'Test'), 20))"},
        {"name": "no such thing", "js": "nothing.at.all === 1", "error": "fails"},
    ]
    await environment.reset(
        make_task(tmp_path, "<script>const state = {x: 1}; localStorage.k = 'v'</script>", checks=checks)
    )
    outcome = await environment.evaluate()
    assert [check.passed for check in outcome.checks] == [True, True, True, False] and outcome.score == 0.5
    assert "nothing is not defined" in outcome.checks[3].detail


@pytest.mark.parametrize("key", ["é", "ß", "€", "😀"])
async def test_a_character_that_no_key_has_is_put_in(browser: Browser, tmp_path: Path, key: str) -> None:
    environment = GuiEnvironment(browser)
    seen = await environment.reset(make_task(tmp_path, PAGE))
    said = await environment.step(act("key", key=key, element=find(seen, "textbox", "Name")))
    assert f"Seen: {key}" in said.observation.text and f"pressed {key} on" in said.observation.text
    await environment.close()


@pytest.mark.parametrize("key", ["Shift+é", "Control+€", "\ud800", "é" * 9, "Hyper", "x" * 10**5])
async def test_a_key_that_can_not_be_pressed_is_a_fault(browser: Browser, tmp_path: Path, key: str) -> None:
    environment = GuiEnvironment(browser)
    await environment.reset(make_task(tmp_path, PAGE))
    assert (await environment.step(act("key", key=key))).observation.text.startswith("nothing was done: key: ")
    await environment.close()


async def test_what_playwright_refuses_of_a_live_page_is_a_fault(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.environments.gui.actions._key", lambda written: "NoSuchKey")
    environment = GuiEnvironment(browser)
    await environment.reset(make_task(tmp_path, PAGE))
    said = (await environment.step(act("key", key="x"))).observation.text
    assert said.startswith("nothing was done: key: it can't be done: Keyboard.press: Unknown key")
    await environment.close()


async def test_no_observation_is_longer_than_twice_the_limit(browser: Browser, tmp_path: Path) -> None:
    environment, long = GuiEnvironment(browser), "x" * 10**5
    shout = f"for (let i = 0; i < 30; i++) alert('{'y' * 5000}'); document.title = '{'z' * 9999}'"
    page = f'{PAGE}<button onclick="{shout}">Shout</button>'
    seen = await environment.reset(make_task(tmp_path, page, output_chars=3000))
    name, colour = find(seen, "textbox", "Name"), find(seen, "combobox", "Colour")
    actions = [
        act(long), act("click", element=long), act("click", element=[1] * 10**5), act("click", **{long: 1}),
        act("scroll", direction=long), act("select", element=colour, option=[long] * 99),
        act("select", element=colour, option=["x"] * 10**5), Action(text="", fault=long),
        Action(text="", calls=act("type", element=name, text="a" * 1999).calls * 20),
        act("click", element=find(seen, "button", "Shout")),
    ]  # fmt: skip
    for action in actions:
        text = (await environment.step(action)).observation.text
        assert len(text) < 6200, text[:200]
    await environment.close()
