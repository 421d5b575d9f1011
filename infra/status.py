"""`clawrl status`: what serves, what it learns, what did not count and why, what is wrong.

What it leaves out: the numbers themselves; the gateway joins what policy and learner say of themselves.
"""

import time
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from infra.admin import Running
from infra.home import Home


def gather(home: Home) -> dict[str, Any]:
    """Everything as plain data; `running` is False where nothing was started or something has ended."""
    state = home.state()
    if state is None:
        return {"running": False, "home": str(home.root), "processes": {}, "alarms": []}
    processes = {started.name: started.process() is not None for started in state.processes}
    data: dict[str, Any] = {
        "running": all(processes.values()),
        "home": str(home.root),
        "since": state.started_at,
        "addresses": {part: state.url(part) for part in ("gateway", "mlflow", "s3")},
        "processes": processes,
        "changing": home.changing(),
        "alarms": [],
    }
    try:
        data |= Running(home).admin()
    except (ValueError, ConnectionError) as fault:  # boundary: a status is given even where the gateway is down
        data["running"] = False
        if data["changing"]:  # no wonder then
            return data
        data["alarms"] = [{"source": "gateway", "text": str(fault), "since": time.time(), "times": 1}]
    for part in ("gateway", "learner", "policy"):
        data["alarms"] = [*data["alarms"], *(data.get(part) or {}).get("alarms", [])]
    return data


def show(data: dict[str, Any], console: Console) -> None:
    """The same for people."""
    if not data["processes"]:
        console.print(f"nothing runs in {data['home']}. Start it with `clawrl up`.")
        return
    if data["changing"]:
        console.print("  it is being started or stopped: a `clawrl up` or `down` is at work")
    for name, alive in data["processes"].items():
        if not alive and not data["changing"]:
            console.print(f"[red]{name} has ended[/red]; `clawrl up` starts it again, logs in {data['home']}/logs")
    for part, url in data["addresses"].items():
        console.print(f"  {part:<10} {url}")
    policy, learner = data.get("policy") or {}, data.get("learner") or {}
    if policy:
        console.print(f"\n  serves     v{policy.get('version')} ({policy.get('state')})")
    if learner.get("error"):
        console.print(f"  [red]learner[/red]    {learner['error']}")
    elif learner:
        _show_learner(learner, console)
    for alarm in data["alarms"]:
        since = time.strftime("%H:%M:%S", time.localtime(alarm["since"]))
        console.print(f"  [red]alarm[/red]      {alarm['source']}, since {since}: {alarm['text']}", soft_wrap=True)
    if not data["alarms"]:
        console.print("  alarms     none")


def _show_learner(learner: dict[str, Any], console: Console) -> None:
    pinned = learner.get("pinned")
    head, batch = learner.get("head"), learner["batch"]
    console.print(
        f"  head       v{head}, live v{learner.get('live')}" + (f", pinned v{pinned}" if pinned is not None else "")
    )
    filled = min(batch["waiting"], batch["size"])
    bar = "█" * filled + "░" * (batch["size"] - filled)
    note = "learning is paused by the pin" if pinned is not None else ""
    if learner.get("training_since"):
        trainer = learner.get("trainer") or {}
        note = f"training for {time.time() - learner['training_since']:.0f} s ({trainer.get('phase', '?')})"
    console.print(f"  next       {bar} {batch['waiting']} of {batch['size']} samples  {note}")
    turns, judge = learner["turns"], learner["judge"]
    console.print(f"  turns      {turns['accepted']} accepted, {turns['open']} open, {turns['trained']} trained")
    console.print(f"  judge      {judge['judged']} judged, {judge['waiting']} waiting")
    console.print(f"  probation  {learner['probation']}")
    if learner["not_trained"]:
        table = Table(title="did not count", title_justify="left", box=None, padding=(0, 2))
        table.add_column("turns", justify="right")
        table.add_column("reason")
        for reason, count in learner["not_trained"].items():
            table.add_row(str(count), reason)
        console.print(table)


def memory_by_part(home: Home) -> dict[str, dict[str, float]]:
    """Proportional memory [GB] and processes of every part that this system started, by command line."""
    from infra.processes import of_instance

    state = home.state()
    assert state is not None, "asked of a running system"
    parts: dict[str, dict[str, float]] = {}
    for process in of_instance(state.instance):
        try:
            name, memory = part_of(process), process.memory_full_info().pss / 2**30
        except psutil.NoSuchProcess:
            continue
        part = parts.setdefault(name, {"gb": 0.0, "processes": 0})
        part["gb"] += memory
        part["processes"] += 1
    return parts


def part_of(process: psutil.Process) -> str:
    """Which part a process belongs to, told from its command line."""
    line = " ".join(process.cmdline())
    known = {
        "sglang": "engine", "weed": "object store", "mlflow": "mlflow", "TrainerActor": "trainer",
        "LearnerActor": "learner", "Gateway": "gateway", "Policy": "policy", "Judge": "judge",
        "ServeController": "ray serve", "ProxyActor": "ray serve", "SERVE": "ray serve",
    }  # fmt: skip
    return next((part for mark, part in known.items() if mark in line), "ray")
