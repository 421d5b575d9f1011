"""Who only configures training, or reads a result, does not pay for torch."""

import subprocess
import sys


def test_trainer_and_settings_import_without_torch() -> None:
    code = "import sys, train.trainer, train.settings; sys.exit('torch' in sys.modules or 'megatron' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_engine_imports_without_transformers() -> None:
    code = "import sys, train.update; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False).returncode == 0
