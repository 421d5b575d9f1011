"""The `clawrl` command: one line per verb; each verb's work lies in the module that it names.

What it leaves out: everything but words, options and exit codes. Run: clawrl --help
"""

import json
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from infra.home import Home

console = Console(highlight=False)


def _command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Faults that people can mend end as one line and exit code 1."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (ValueError, OSError) as fault:  # boundary: the command line; OSError names its file
            console.print(f"[red]clawrl:[/red] {escape(str(fault))}", markup=True, soft_wrap=True)
            sys.exit(1)
        except KeyboardInterrupt:
            console.print("\nstopped; what runs goes on (`clawrl status`, `clawrl down`)")
            sys.exit(130)

    return wrapped


def _home(context: click.Context) -> Home:
    return Home.find(context.obj)


class VersionNumber(click.ParamType):
    """A version as people write it: 3 or v3."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        """The number."""
        digits = str(value).removeprefix("v")
        if not digits.isdigit():
            self.fail(f"{value!r} is no version: give its number, as 3 or v3", param, context)
        return int(digits)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--home", metavar="DIR", help="The system's folder (default: CLAWRL_HOME, else .clawrl here).")
@click.version_option(package_name="openclaw-rl", prog_name="clawrl")
@click.pass_context
def main(context: click.Context, home: str | None) -> None:
    """A language model that serves agents and learns from what follows its answers."""
    context.obj = home


@main.command()
@click.pass_context
@_command
def up(context: click.Context) -> None:
    """Start everything on this machine, or find it running."""
    from infra.up import start

    start(_home(context), console)


@main.command()
@click.pass_context
@_command
def down(context: click.Context) -> None:
    """Stop exactly what `up` started. Nothing is lost: open turns are picked up next time."""
    from infra.up import stop

    stop(_home(context), console)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Plain data instead of a page.")
@click.pass_context
@_command
def status(context: click.Context, as_json: bool) -> None:
    """What serves, the head version, progress to the next update, what did not count and why, alarms."""
    from infra.status import gather, show

    data = gather(_home(context))
    if as_json:
        click.echo(json.dumps(data, indent=1, default=str))
    else:
        show(data, console)
    sys.exit(0 if data["running"] else 3)


@main.command()
@click.option("--session", default=None, help="A session id of your own, sent as X-Session-Id.")
@click.argument("message", nargs=-1)
@click.pass_context
@_command
def chat(context: click.Context, session: str | None, message: tuple[str, ...]) -> None:
    """Talk to the model. With a MESSAGE: one turn; without: until an empty line or Ctrl-D."""
    from infra.chat import talk

    talk(_home(context), console, " ".join(message) or None, session)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per turn.")
@click.option("--last", default=20, show_default=True, help="How many turns.")
@click.option("--session", default=None, help="Only this session.")
@click.pass_context
@_command
def sessions(context: click.Context, as_json: bool, last: int, session: str | None) -> None:
    """Each turn: main or side and why, what followed, votes, hint, and whether it trained."""
    from infra.sessions import rows, show

    found = rows(_home(context), last=last, session=session)
    if as_json:
        for row in found:
            click.echo(json.dumps(row, default=str, ensure_ascii=False))
    else:
        show(found, console)


@main.command()
@click.argument("version", type=VersionNumber(), required=False)
@click.pass_context
@_command
def rollback(context: click.Context, version: int | None) -> None:
    """Pin VERSION (default: the one before the head). Serving swaps in seconds, learning pauses."""
    from infra.pinning import rollback as pin

    pin(_home(context), console, version)


@main.command()
@click.pass_context
@_command
def resume(context: click.Context) -> None:
    """Take the pin off: learning goes on from the pinned version."""
    from infra.pinning import resume as unpin

    unpin(_home(context), console)


@main.command()
@click.option("--updates", default=2, show_default=True, help="How many updates to wait for.")
@click.option("--seed", default=0, show_default=True)
@click.pass_context
@_command
def demo(context: click.Context, updates: int, seed: int) -> None:
    """Start everything, let a scripted student talk to it until it has learned, show the score before and after."""
    from infra.demo import run

    run(_home(context), console, updates=updates, seed=seed)


@main.command()
@click.option(
    "--expect",
    type=click.Path(exists=True),
    help="What a client knows: a line each, an answer's id [words of it].",
)
@click.pass_context
@_command
def audit(context: click.Context, expect: str | None) -> None:
    """Is every accepted turn there, was any sample trained twice, is any lost? Reads journal, Parquet, manifests."""
    from infra.audit import run

    sys.exit(run(_home(context), console, expect))


@main.command()
@click.option("--kills", default=60, show_default=True, help="Kills in all, spread over the four parts.")
@click.option("--seed", default=0, show_default=True)
@click.pass_context
@_command
def soak(context: click.Context, kills: int, seed: int) -> None:
    """Kill gateway, engine, learner and trainer at random moments of scripted traffic, then audit."""
    from infra.soak import run

    sys.exit(run(_home(context), console, kills=kills, seed=seed))


@main.command()
@click.argument("which", nargs=-1)
@click.pass_context
@_command
def bench(context: click.Context, which: tuple[str, ...]) -> None:
    """Measure the running system. WHICH: rest, swap, gateway, memory (these four without a word), or step."""
    from infra.bench import run

    run(_home(context), console, which)


if __name__ == "__main__":
    main()
