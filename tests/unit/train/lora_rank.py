"""One of two ranks, started by `test_lora.py`: `python -m tests.unit.train.lora_rank JOB RANK`.

Imports stand inside: saving a checkpoint starts a process that imports this file again.
"""

import json
import sys
from pathlib import Path
from typing import Any


def main(job: dict[str, Any], rank: int) -> None:
    """Start afresh and load; as a tensor-parallel rank also forward and backward, export, and save a checkpoint."""
    import torch.distributed as dist
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from safetensors.torch import load_file, save_file

    from tests.unit.train.lora_model import bare, checkpoint, megatron_gradients, take
    from train.megatron import cpu, lora

    out = Path(job["out"])
    settings = lora.LoraSettings(rank=job["rank"], alpha=job["alpha"], targets=tuple(job["targets"]))
    with cpu.device_mode():
        dist.init_process_group("gloo", store=dist.FileStore(str(out / "store"), 2), rank=rank, world_size=2)
        parallel_state.initialize_model_parallel(job["tensor"], 2 // job["tensor"])
        tensor_parallel.model_parallel_cuda_manual_seed(1234)
        model = bare(Path(job["folder"]), settings)
        save_file(lora.gather(model), out / f"fresh{rank}.safetensors")
        lora.load_adapter(model, Path(job["adapter"]))
        save_file(lora.gather(model), out / f"loaded{rank}.safetensors")
        if job["tensor"] == 2:
            take(model, load_file(out / "base.safetensors"))
            loss, norm, gradients = megatron_gradients(model)
            save_file(gradients, out / f"gradients{rank}.safetensors")
            (out / f"found{rank}.json").write_text(json.dumps({"loss": loss, "norm": norm}))
            lora.export_adapter(model, out / f"adapter{rank}", Path(job["folder"]))
            (out / "checkpoint").mkdir(exist_ok=True)
            dist_checkpointing.save(checkpoint(model), str(out / "checkpoint"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
