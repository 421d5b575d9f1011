"""What the policy reads: of the repository, of a command, of what a step changed.

What it leaves out: cutting long output of commands, which the sandbox did already.
"""

from serve.environments.sandbox import CommandResult
from serve.environments.swe.patches import REPO, Difference
from serve.environments.swe.repository import Base
from serve.environments.terminal.observing import shown

LISTED = 40  # files that the first observation names
DIFF_SHARE = 0.5  # of the characters of an output that a diff may take


def of_start(base: Base) -> str:
    """The first observation."""
    more = f"\n... and {len(base.files) - LISTED} more" if len(base.files) > LISTED else ""
    names = "\n".join(base.files[:LISTED])
    return f"The shell is in {REPO}, a git repository at commit {base.commit[:12]}. Its files:\n{names}{more}"


def of_command(result: CommandResult, cwd_before: str, limit_s: float) -> str:
    """Its output, its errors apart, and how it ended."""
    out, err = shown(result.stdout, result.stdout_cut), shown(result.stderr, result.stderr_cut)
    lines = [out] if out else []
    if err:
        lines.append(f"stderr:\n{err}")
    if not out and not err:
        lines.append("(no output)")
    if result.timed_out:
        lines.append(f"timed out: stopped after {limit_s:g} s")
    elif result.exit_code is None:
        lines.append(f"stopped: {result.ended or 'it was interrupted'}")
    else:
        lines.append(f"exit code: {result.exit_code}" + (f" ({result.ended})" if result.ended else ""))
    if result.shell_restarted:
        lines.append(f"The shell was started anew in {REPO}: its variables and functions are gone; files stay.")
    elif result.cwd != cwd_before:
        lines.append(f"cwd: {result.cwd}")
    return "\n".join(lines)


def of_change(difference: Difference, output_chars: int) -> str:
    """The whole difference to the base commit, after a step that changed it."""
    if not difference.patch:
        return "The files are as they were in the base commit again."
    text = difference.patch.decode("utf-8", "replace").rstrip("\n")
    text = "\n".join(line for line in text.split("\n") if not line.startswith("index "))
    limit = max(int(output_chars * DIFF_SHARE), 200)
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n... ({len(text) - 2 * half} characters left out) ...\n{text[-half:]}"
    return f"Changes since the base commit:\n{text}"
