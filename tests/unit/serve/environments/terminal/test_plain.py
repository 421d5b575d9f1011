import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.environments.protocol import Action, Call
from serve.environments.terminal import expert_action, parse_plain, plain_text
from tests.unit.serve.environments.terminal.building import DONE, bash

PIECES = st.sampled_from(["```", "```bash\n", "````", "\n", "ls -l", "DONE", " ", "<think>", "</think>", "\r\n", "é"])


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("```bash\nls\n```", "ls"),
        ("I look first.\n```bash\nls -l\ncat a\n```\nThen more.", "ls -l\ncat a"),
        ("```sh\nls\n```", "ls"),
        ("```\nls\n```", "ls"),
        ("```bash\r\nls\n```\r\n", "ls"),
        ("````bash\ncat > a.md <<'E'\n```\nx\n```\nE\n````", "cat > a.md <<'E'\n```\nx\n```\nE"),
        ("<think>```bash\nrm a\n``` DONE</think>\n```bash\nls\n```", "ls"),
    ],
)
def test_one_block_is_a_command(text, command):
    action = parse_plain(text)
    assert action.fault is None and action.text == text
    assert action.calls == (Call(name="bash", arguments={"command": command}),)


@pytest.mark.parametrize("text", ["DONE", "done", " **DONE**.\n", "All is well.\nDONE", "<think>so</think>DONE"])
def test_the_word_alone_is_done(text):
    assert parse_plain(text).calls == DONE.calls


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("ls -l", "no ```bash block"),
        ("I am not done yet, and DONE is a word", "no ```bash block"),
        ("```bash\nls", "has no end"),
        ("```bash\nls\n```\n```bash\npwd\n```", "2 blocks"),
        ("```bash\n\n```", "block is empty"),
        ("```python\nprint(1)\n```", "marked 'python'"),
        ("```bash\nls\n```\nDONE", "both a block and DONE"),
    ],
)
def test_a_fault_says_what_is_wrong_and_shows_the_right_form(text, named):
    action = parse_plain(text)
    assert not action.calls and named in action.fault and "```bash\nls\n```" in action.fault and "DONE" in action.fault


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_any_text_is_an_action_or_a_fault(text):
    action = parse_plain(text)
    assert bool(action.calls) != bool(action.fault) and len(action.calls) <= 1 and action.text == text


@given(st.one_of(st.text(min_size=1), st.lists(PIECES, min_size=1).map("".join)).filter(str.strip))
def test_the_plain_form_is_read_back(command):
    assert parse_plain(plain_text(bash(command))).calls == bash(command).calls


def test_done_and_actions_without_a_call_have_a_plain_form():
    assert plain_text(DONE) == "DONE"
    assert plain_text(Action(text="hm")) == "hm"
    with pytest.raises(ValueError, match="2 calls have no plain form"):
        plain_text(Action(text="", calls=bash("ls").calls * 2))


def test_expert_entries_are_commands_or_done():
    assert expert_action("ls", None) == bash("ls") and expert_action("done", None) == DONE
    for entry in ("", 3, {"command": "ls"}):
        with pytest.raises(ValueError, match="is a bash command, or done"):
            expert_action(entry, None)
