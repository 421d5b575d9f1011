"""Programs that want a person at a terminal: what to say when one of them was run.

What it does: `note`, a line for the observation of a command that failed, was stopped or printed nothing, where a
program in it wants to be typed to. What it leaves out: understanding bash. A program that is missed costs a hint, no
more.
"""

import re
from collections.abc import Iterator

PROGRAM_CHARS = 80  # of the name that a hint begins with
NO_TERMINAL = "There is no terminal here and stdin is empty (end of file)"

_EDIT = "write a file with cat > FILE <<'EOF' ... EOF, or change one with sed -i"
_PAGE = "use cat, head, tail or sed -n"
_CODE = "give it code: a script file, an option such as -c or -e, or a here-document"
_REMOTE = "and no network: nothing outside this sandbox can be reached"
_PASSWORD = "no password can be typed; you are the only user, and do without"
_SCREEN = "use a form that prints once and ends"
_BACK = "start a program in the background with & and send its output to a file"

ALWAYS = {
    **dict.fromkeys(("vi", "vim", "nvim", "view", "nano", "pico", "emacs", "ed", "joe", "mcedit", "vimdiff"), _EDIT),
    **dict.fromkeys(("less", "more", "most", "man", "info"), _PAGE),
    **dict.fromkeys(("ssh", "scp", "sftp", "ftp", "telnet", "curl", "wget", "ping", "nc"), _REMOTE),
    **dict.fromkeys(("passwd", "su", "sudo", "login", "chsh", "adduser", "visudo"), _PASSWORD),
    **dict.fromkeys(("top", "htop", "watch", "mc", "dialog", "whiptail", "iotop"), f"{_SCREEN}, such as ps aux"),
    **dict.fromkeys(("screen", "tmux", "byobu"), _BACK),
}
FROM_STDIN = {  # programs that read stdin where they get no operand
    **dict.fromkeys(
        ("python", "python3", "ipython", "node", "irb", "ruby", "perl", "php", "lua", "bc", "dc", "gdb", "sqlite3"),
        _CODE,
    ),
    **dict.fromkeys(("psql", "mysql", "mongo", "redis-cli"), _CODE),
    **dict.fromkeys(("bash", "sh", "zsh", "dash"), "give the commands themselves"),
    **dict.fromkeys(("cat", "tee", "sort", "wc", "uniq", "tac"), "name a file, or give the text with a here-document"),
}
READS = {"read": "assign the variable instead", "select": "choose without asking", "mapfile": "give it a file with <"}
WITH_EDITOR = (
    (
        re.compile(r"git commit\b(?!.*(?:\s-\w*[mFC]|--message|--file|--no-edit|--reuse-message|--fixup))"),
        "use git commit -m",
    ),
    (re.compile(r"git rebase\b.*(?:\s-i\b|--interactive)"), "use git rebase without -i, or set GIT_SEQUENCE_EDITOR"),
    (re.compile(r"git (?:add|checkout|reset|stash) .*(?:-p\b|--patch|-i\b)"), "name whole files instead"),
    (re.compile(r"git (?:mergetool|difftool|gui|citool)\b"), "edit the files themselves"),
    (re.compile(r"crontab\b.*\s-e\b"), "give crontab a file"),
    (re.compile(r"python3? -i\b"), _CODE),
    (re.compile(r"(?:rm|cp|mv) -\w*i"), "leave out -i"),
)
_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)
_BREAK = re.compile(r"(\|\|?|&&|;|\n|&(?!>|\d)|\(|\)|\{|\}|\b(?:then|do|else|if|while|until)\b)")
_BEFORE = {"env", "exec", "command", "nohup", "time", "builtin", "stdbuf", "nice", "!"}
_OPERAND = re.compile(r"[^-]")


def note(command: str) -> str | None:
    """What to say about a program in this command that wants a person; None where there is none."""
    for words, line, fed in _simple_commands(command):
        program = words[0].rpartition("/")[2]
        instead = ALWAYS.get(program)
        if instead is None and not fed:
            instead = READS.get(program)
            if not any(_OPERAND.match(word) for word in words[1:]) and not set(words[1:]) & {
                "--version",
                "-V",
                "--help",
                "-h",
            }:
                instead = instead or FROM_STDIN.get(program)
        if instead is None:
            program, instead = next(((line, said) for form, said in WITH_EDITOR if form.match(line)), (program, None))
        if instead is not None:
            joint = " " if instead.startswith("and ") else ": "
            return f"{program[:PROGRAM_CHARS]}: {NO_TERMINAL}{joint}{instead}."
    return None


def _simple_commands(command: str) -> Iterator[tuple[list[str], str, bool]]:
    """The simple commands in it: words without quotes and redirections, the same in one line, whether stdin is fed."""
    text, piped = _QUOTED.sub("Q", _without_here_documents(command)), False
    loops_fed = bool(re.search(r"\bdone\s*<", text))
    for part in _BREAK.split(text):
        if _BREAK.fullmatch(part):
            piped = (
                part == "|"
                or (loops_fed and part in ("while", "until"))
                or (piped and part in ("{", "(", "while", "until", "do", "if", "then"))
            )
            continue
        fed = piped or "<" in part
        words = re.sub(r"\d*(?:>>?|<<?<?|&>)\s*&?\S+", " ", part).split()
        while words and (words[0] in _BEFORE or re.match(r"\w+=", words[0])):
            words.pop(0)
        if words and words[0] == "timeout":
            words = [word for word in words[1:] if not re.match(r"-|\d", word)]
        if words:
            yield words, " ".join(words), fed


def _without_here_documents(command: str) -> str:
    """The command without the bodies of here-documents."""
    lines, kept = iter(command.split("\n")), []
    for line in lines:
        kept.append(line)
        for _, end in _HERE.findall(line):
            for body in lines:
                if body.strip() == end:
                    break
    return "\n".join(kept)
