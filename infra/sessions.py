"""`clawrl sessions`: every turn with main or side and why, what followed, votes, hint, and whether it trained.

It reads the journal, the sealed Parquet and the manifests: no service has to run but the object store, and without
that it shows what the journal still has.
"""

from typing import Any

from rich.console import Console

from infra.admin import Running
from infra.home import Home
from storage import dataset


def rows(home: Home, *, last: int, session: str | None) -> list[dict[str, Any]]:
    """The last turns, oldest first. Raises ValueError where nothing runs."""
    running = Running(home)
    versions = running.versions()
    trained = {sample: v.number for v in versions.versions() for sample in v.sample_ids}
    turns = dataset.read_turns(home.journal, running.settings.model.name, running.objects(), session=session, last=last)
    for turn in turns:
        turn["trained_in"] = trained.get(turn.get("sample_id"))
    return turns


def show(found: list[dict[str, Any]], console: Console) -> None:
    """For people."""
    if not found:
        console.print("no turn yet. Talk to the model with `clawrl chat`, or point a client at it.")
    session = None
    for turn in found:
        if turn.get("session_id") != session:
            session = turn.get("session_id")
            console.print(f"\n[bold]session {session or 'not decided yet'}[/bold]  ({turn.get('tenant')})")
        _show_turn(turn, console)


def _show_turn(turn: dict[str, Any], console: Console) -> None:
    kind, why = turn.get("kind") or "?", turn.get("why_kind") or "the tracker has not seen it yet"
    console.print(f"  [dim]{turn['exchange_id']}[/dim] v{turn['version']} [cyan]{kind}[/cyan]: {why}", soft_wrap=True)
    _line(console, "asked", turn.get("question"))
    _line(console, "answered", turn.get("answer"))
    _line(console, "followed", turn.get("next_state"))
    reward, hint = turn.get("reward"), turn.get("hint")
    if turn.get("judge"):
        votes = ", ".join(f"{vote:+d}" for vote in turn.get("votes") or [])
        verdict = "no verdict" if reward is None else f"{reward:+d}"
        _line(console, "judged", f"{verdict} by {turn['judge']} (votes: {votes or 'none'})")
    _line(console, "hint", hint)
    if turn.get("trained_in") is not None:
        _line(console, "trained", f"in v{turn['trained_in']}")
    elif turn.get("reason"):
        _line(console, "left out", f"{turn['reason']}: {turn.get('detail') or ''}")
    else:
        _line(console, "waits", "for a batch" if turn.get("sample_id") else "for what follows, or its verdict")


def _line(console: Console, name: str, text: str | None) -> None:
    if text:
        console.print(f"      {name:<9}", " ".join(str(text).split())[:160], markup=False, soft_wrap=True)
