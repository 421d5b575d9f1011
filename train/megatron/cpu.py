"""Run unedited Megatron-Core where there is no CUDA.

What it does: `install()` redirects the calls that Megatron makes without asking (once per process); `device_mode()`
is entered around Megatron's work, in the thread that does it, and turns literal "cuda" devices into the CPU's.
`multiply_bf16_in_fp32()` is for CPUs without bf16 instructions. All do nothing where CUDA is there.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
_installed = False
_overrides: torch.library.Library | None = None


def _is_cuda(device: Any) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or (
        isinstance(device, torch.device) and device.type == "cuda"
    )


class CudaToCpu(TorchFunctionMode):
    """Factories with device="cuda", Tensor.cuda(), and the type-string checks of Megatron's optimisers."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Redirect one torch call."""
        kwargs = kwargs or {}
        if _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": CPU}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        return func(*args, **kwargs)


@contextlib.contextmanager
def device_mode() -> Iterator[None]:
    """Megatron's work goes inside. The mode belongs to the thread that enters it."""
    if torch.cuda.is_available():
        yield
        return
    with CudaToCpu():
        yield


def install() -> None:
    """Redirect what Megatron asks of torch.cuda. Call before building anything of it."""
    global _installed
    if torch.cuda.is_available() or _installed:
        return
    torch.cuda.current_device = lambda: CPU  # some sixty places: device=torch.cuda.current_device()
    torch.cuda.synchronize = lambda *args, **kwargs: None
    torch.cuda.manual_seed = torch.manual_seed  # model_parallel_cuda_manual_seed
    torch.cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    import megatron.core.tensor_parallel.random as random  # the rng tracker then forks the CPU's generator

    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    _installed = True


def multiply_bf16_in_fp32() -> None:
    """On CPUs without bf16 instructions, multiply bf16 matrices as fp32 ones (once per process).

    torch has no fast kernel for them there: SmolLM2-135M's gradients took 20 times as long as in fp32. Memory stays
    that of bf16 but for one matrix at a time; results are rounded once, at the end.
    """
    global _overrides
    if torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported() or _overrides is not None:
        return

    def mm(left_NK: torch.Tensor, right_KM: torch.Tensor) -> torch.Tensor:
        if left_NK.dtype != right_KM.dtype:
            raise RuntimeError(f"mm of {left_NK.dtype} and {right_KM.dtype}: both must be of one dtype")
        dtype = torch.float32 if left_NK.dtype == torch.bfloat16 else left_NK.dtype
        out_NM = left_NK.new_empty((left_NK.shape[0], right_KM.shape[1]), dtype=dtype)
        torch.ops.aten.mm.out(left_NK.to(dtype), right_KM.to(dtype), out=out_NM)
        return out_NM.to(left_NK.dtype)

    def addmm(
        add_NM: torch.Tensor, left_NK: torch.Tensor, right_KM: torch.Tensor, *, beta: float = 1, alpha: float = 1
    ) -> torch.Tensor:
        dtype = torch.float32 if left_NK.dtype == torch.bfloat16 else left_NK.dtype
        out_NM = left_NK.new_empty((left_NK.shape[0], right_KM.shape[1]), dtype=dtype)
        parts = (each.to(dtype) for each in (add_NM, left_NK, right_KM))
        torch.ops.aten.addmm.out(*parts, beta=beta, alpha=alpha, out=out_NM)
        return out_NM.to(left_NK.dtype)

    _overrides = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is overridden is what is meant
        _overrides.impl("mm", mm, "CPU")
        _overrides.impl("addmm", addmm, "CPU")
