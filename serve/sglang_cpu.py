"""Starts the real SGLang server as a child that never outlives its parent, on a CPU too.

What it does:
- asks the kernel to kill this process when its parent dies, and again in each process that SGLang starts;
- where there is no CPU build of `sgl_kernel` and no torchvision, puts stand-in modules in their place;
- on a CPU forks SGLang's processes instead of spawning them: they share what is imported, which saves two thirds of
  the start's work (there is no CUDA that a fork would break);
- binds torch's rendezvous, which listens on all interfaces, to loopback where the server is on loopback;
then hands the command line to SGLang unchanged.
What it leaves out: choosing flags, waiting until it is ready, restarting (`serve/engine.py` does).
How to run it: `python -m serve.sglang_cpu --model-path DIR --device cpu --attention-backend torch_native …`
"""

import ctypes
import enum
import importlib.machinery
import importlib.util
import multiprocessing
import os
import signal
import socket
import sys
import types
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>
PARENT = "CLAWRL_ENGINE_PARENT"  # the environment variable that tells the server who started it


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; leave at once if it ended before we could ask."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _who_started_us() -> int:
    """The parent as it was told to us: asking the kernel would be too late if it is gone already."""
    spawned_by = multiprocessing.parent_process()
    if spawned_by is not None and spawned_by.pid is not None:
        return spawned_by.pid
    return int(os.environ.get(PARENT, os.getppid()))


def _module(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__path__ = []
    module.__dict__.update(attributes)
    sys.modules[name] = module
    return module


def _stand_in_kernels() -> None:
    def lookup(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_args: Any, **_kwargs: Any) -> NoReturn:
            raise NotImplementedError(f"sgl_kernel.{name} has no CPU build here")

        return missing

    _module("sgl_kernel", __getattr__=lookup)


def _stand_in_torchvision() -> None:
    from transformers.utils import is_torchvision_available

    is_torchvision_available()  # caches False, so that transformers keeps its PIL path

    class InterpolationMode(enum.Enum):
        NEAREST = "nearest"
        BILINEAR = "bilinear"
        BICUBIC = "bicubic"
        LANCZOS = "lanczos"

    functional = _module("torchvision.transforms.functional", InterpolationMode=InterpolationMode)
    transforms = _module("torchvision.transforms", InterpolationMode=InterpolationMode, functional=functional)
    _module("torchvision", transforms=transforms)


def _fork_instead_of_spawn() -> None:
    choose = multiprocessing.set_start_method

    def forking(method: str | None, force: bool = False) -> None:
        choose("fork" if method == "spawn" else method, force=force)

    multiprocessing.set_start_method = forking  # type: ignore[assignment]
    die_with_forks()


def die_with_forks() -> None:
    """Whatever this process forks from now on, and what that forks, dies with its parent."""
    parent = os.getpid()

    def note() -> None:
        nonlocal parent
        parent = os.getpid()

    os.register_at_fork(before=note, after_in_child=lambda: die_with_parent(parent))


def _rendezvous_on_loopback() -> None:
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    original = rendezvous.TCPStore

    def store(*, host_name: str, port: int, is_master: bool, **rest: Any) -> Any:
        if is_master and host_name in ("127.0.0.1", "localhost"):
            rest["master_listen_fd"] = socket.create_server((host_name, port)).detach()
        return original(host_name=host_name, port=port, is_master=is_master, **rest)

    rendezvous.TCPStore = store


def _prepare() -> None:
    die_with_parent(_who_started_us())
    _rendezvous_on_loopback()
    if "cpu" in sys.argv:
        _fork_instead_of_spawn()
    if importlib.util.find_spec("sgl_kernel") is None:
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
        _stand_in_kernels()
    if importlib.util.find_spec("torchvision") is None:
        _stand_in_torchvision()


if __name__ in ("__main__", "__mp_main__"):
    _prepare()  # at import: every spawned child runs it again

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
