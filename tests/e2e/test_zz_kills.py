"""Kill -9 of gateway, engine, learner and trainer at random moments of scripted traffic; then the auditor is asked."""

import asyncio

import pytest
from rich.console import Console

from infra.admin import Running
from infra.soak import settle, soak
from storage.audit import audit

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(900)
def test_nothing_is_lost_or_trained_twice(system: Running) -> None:
    settle(system, Console())
    account = asyncio.run(soak(system, kills=8, seed=7, talkers=2, max_tokens=32, gap_s=(0.0, 5.0)))
    assert account.kills == {"gateway": 2, "engine": 2, "learner": 2, "trainer": 2}
    assert len(account.accepted) >= 8, "the traffic went on between the kills"
    settle(system, Console())
    found = audit(system.home.journal, system.settings.model.name, system.objects(), expected=account.accepted)
    assert found.ok, str(found)
