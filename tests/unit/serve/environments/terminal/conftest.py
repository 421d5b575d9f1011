import pytest

from serve.environments.terminal import TerminalEnvironment


@pytest.fixture
async def environment():
    environment = TerminalEnvironment()
    yield environment
    await environment.close()
