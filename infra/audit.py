"""`clawrl audit`: hand the system's journal, object store and the client's account to the auditor, show what it found.

What it leaves out: the audit itself (`storage/audit.py`).
"""

from pathlib import Path

from rich.console import Console

from infra.admin import Running
from infra.home import Home


def run(home: Home, console: Console, expect: str | None) -> int:
    """0 where nothing is wrong, else 1."""
    return report(home, console, Path(expect) if expect else None)


def report(home: Home, console: Console, expect: Path | None) -> int:
    """Audit and show."""
    from storage.audit import audit

    running = Running(home)
    expected = expect.read_text().splitlines() if expect else None
    found = audit(home.journal, running.settings.model.name, running.objects(), expected=expected)
    console.print(found.table())
    return 0 if found.ok else 1
