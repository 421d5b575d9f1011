import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.environments.terminal.interactive import note


@pytest.mark.parametrize(
    "command",
    [
        "vim a.txt",
        "cd /tmp && nano b",
        "sudo ls",
        "/usr/bin/less log",
        "ls | more",
        "man ls",
        "top",
        "python",
        "X=1 python3",
        "bc",
        "psql",
        "env python3",
        "timeout 5 python3",
        "git commit",
        "git commit -a",
        "git commit --amend",
        "git rebase -i HEAD~2",
        "git add -p",
        "crontab -e",
        "rm -ri d",
        "for f in a b; do read x; done",
        "if true; then passwd; fi",
        "cat > file.txt",
    ],
)
def test_what_wants_a_person_is_seen(command):
    assert "There is no terminal here and stdin is empty" in note(command)


@pytest.mark.parametrize(
    "command",
    [
        "ls -l",
        "python3 a.py",
        "python3 -c 'print(1)'",
        "python3 < a.py",
        "echo 'print(1)' | python3",
        "python3 - <<'END'\nread = 1\nvim = 2\nEND",
        "echo 1+1 | bc",
        "bc <<< 1+1",
        "while read -r line; do echo $line; done < a",
        "cat a | while read -r line; do echo $line; done",
        "read x < a",
        "git commit -m 'vim is read'",
        "git commit -qm x",
        "git commit -am x",
        "git commit --amend --no-edit",
        "echo vim",
        "echo 'a; vim b'",
        "grep read a.txt",
        "cat > file <<'END'\nnano\nEND",
        "cat a > b",
        "which less",
        "python3 --version",
        "sort a | uniq",
        "",
        "'",
    ],
)
def test_what_wants_nobody_is_not(command):
    assert note(command) is None


@given(
    st.one_of(
        st.text(), st.lists(st.sampled_from(["vim", "|", "<<E", "\n", "'", '"', "$(", ")", "read", "\\"])).map(" ".join)
    )
)
def test_any_text_can_be_asked_about(command):
    assert note(command) is None or "There is no terminal" in note(command)
