"""Rules for all tests: only those marked `gpu` are skipped, where there is no GPU, and their number is asserted."""

import shutil

import pytest

GPU_TESTS = 5  # how many there are; a run of all tests without a GPU must skip exactly these


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if shutil.which("nvidia-smi") is None:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="gpu: needs an NVIDIA GPU"))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    strange = [report for report in skipped if "gpu:" not in str(report.longrepr)]
    whole = session.config.args in (["tests"], [str(session.config.rootpath / "tests")])
    wrong = whole and shutil.which("nvidia-smi") is None and len(skipped) != GPU_TESTS
    if strange or wrong:
        print(f"\nskipped: {len(skipped)}, of them not for want of a GPU: {len(strange)}; {GPU_TESTS} were expected")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
