"""`clawrl up` and `clawrl down`: object store, MLflow and Ray start side by side, then the deployments on Ray.

A staged report says what each part waits for. What it leaves out: clusters (one machine, loopback only), and the parts
themselves. A second `up` finds the running one; a failed one ends what it started.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
from rich.console import Console

from infra import processes, services
from infra.config import load
from infra.home import Home, Started, State
from infra.settings import Settings
from storage.records import new_id
from train.megatron.layout import check_layout, read_config

NEEDED_MEMORY_GB = 9.0
NEEDED_DISK_GB = 6.0
READY_S = 480.0  # for the engine, on a busy machine
BUCKET = "clawrl"
DEPLOYS = "deploy: "  # what `infra.deploy` begins a line with that says what comes next


@dataclass
class Plan:
    """What one `up` starts, and with what."""

    home: Home
    settings: Settings
    state: State
    console: Console
    lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self, part: str, text: str) -> None:
        """A line of the staged report."""
        self.console.print(f"  [bold]{part:<12}[/bold] {text}", soft_wrap=True)

    def note(self, name: str, child: subprocess.Popen) -> subprocess.Popen:
        """Remember a part that was started."""
        started = Started(name=name, pid=child.pid, created=psutil.Process(child.pid).create_time())
        with self.lock:
            self.state = replace(self.state, processes=(*self.state.processes, started))
            self.home.write_state(self.state)
        return child

    def forget(self, name: str) -> None:
        """A part that was noted has ended."""
        with self.lock:
            self.state = replace(self.state, processes=tuple(p for p in self.state.processes if p.name != name))
            self.home.write_state(self.state)


def start(home: Home, console: Console) -> State:
    """Start everything, or find it running. Raises ValueError with one line where it can't."""
    settings = load(Settings, home.config)
    home.make()
    with _alone(home):
        running = home.state()
        if running is not None:
            dead = {started.name for started in running.processes if not started.process()}
            if "ray" not in dead:
                _revive(Plan(home, settings, running, console), dead)
                return home.state() or running
            console.print("a system that is only half there was found; ending the rest of it first")
            _end(home, running)
        preflight(home, settings)
        plan = _plan(home, settings, console)
        try:
            _start_all(plan)
        except BaseException:
            console.print("ending what was started")
            _end(home, plan.state)
            raise
        _addresses(home, settings, plan.state, console)
        return plan.state


def _revive(plan: Plan, dead: set[str]) -> None:
    """A store that ended is started again at its old address; what runs on Ray has waited for it."""
    if not dead:
        since = time.strftime("%H:%M:%S", time.localtime(plan.state.started_at))
        plan.console.print(f"already up since {since}")
    for name, work in (("s3", _start_s3), ("mlflow", _start_mlflow)):
        if name in dead:
            plan.console.print(f"{name} had ended; starting it again")
            plan.forget(name)
            os.environ[processes.MARK] = plan.state.instance
            work(plan)
    _addresses(plan.home, plan.settings, plan.state, plan.console)


def stop(home: Home, console: Console) -> None:
    """Stop what `up` started: the learner and trainer finish what they write first."""
    home.make()
    with _alone(home):
        state = home.state()
        if state is None:
            console.print(f"nothing runs in {home.root}")
            return
        began = time.monotonic()
        if any(started.name == "ray" and started.process() for started in state.processes):
            console.print("  [bold]gateway[/bold]      lets running answers end")
            console.print("  [bold]learner[/bold]      lets a running step finish, saves the optimiser's state")
            _drain(home, state)
        _end(home, state)
        console.print(f"down after {time.monotonic() - began:.1f} s. Everything is kept in {home.root}")


def preflight(home: Home, settings: Settings) -> None:
    """Raise ValueError for what would make the start fail later: memory, disk, model, ports."""
    memory_gb = psutil.virtual_memory().available / 2**30
    if memory_gb < NEEDED_MEMORY_GB:
        raise ValueError(f"too little memory: {memory_gb:.1f} GB are free, {NEEDED_MEMORY_GB:.0f} GB are needed. "
                         "Close something and try again.")  # fmt: skip
    disk_gb = shutil.disk_usage(home.root).free / 2**30
    if disk_gb < NEEDED_DISK_GB:
        raise ValueError(f"too little disk: {disk_gb:.1f} GB are free in {home.root}, {NEEDED_DISK_GB:.0f} GB are "
                         "needed. Free some, or choose another folder with --home.")  # fmt: skip
    model_dir = settings.model.folder
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if not (model_dir / name).exists():
            raise ValueError(f"no model in {model_dir}: {name} is missing. Run `make model`, or set model.dir.")
    try:
        check_layout(read_config(model_dir), settings.trainer().parallel)
    except ValueError as fault:
        raise ValueError(f"{fault} (the layout is [train.parallel] in {home.config})") from fault
    for part, port in settings.server.ports().items():
        user = processes.port_user(port) if port else None
        if user is not None:
            raise ValueError(f"port {port} for {part} is taken by {user}. Stop it, or set server.{part}_port "
                             f"in {home.config} (0 chooses a free one).")  # fmt: skip


def _plan(home: Home, settings: Settings, console: Console) -> Plan:
    ports = {part: port or services.free_port() for part, port in settings.server.ports().items()}
    state = State(instance=new_id(), host=settings.server.host, ports=ports, processes=(), started_at=time.time())
    for name in [name for name in os.environ if name.startswith(("RAY_", "MLFLOW_"))]:
        del os.environ[name]  # another system's addresses and keys
    os.environ.update(ray_environ(home), **{processes.MARK: state.instance})
    return Plan(home, settings, state, console)


def ray_environ(home: Home) -> dict[str, str]:
    """What every Ray process of this system is started with: loopback, a token, no telemetry, no idle workers."""
    home.secret("run/ray_token")
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(home.ray_token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_worker_niceness": "0",  # 15 by default: answers would wait behind everything else
        "RAY_SERVE_HTTP_KEEP_ALIVE_TIMEOUT_S": "600",
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",  # 0.1 by default, which is 4% of a core for nothing
        "NO_PROXY": "127.0.0.1,localhost",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",  # engine and trainer share the cores: waiting threads must not spin
    }


def _start_all(plan: Plan) -> None:
    began = time.monotonic()
    plan.console.print(f"starting in {plan.home.root} (logs in {plan.home.logs})")
    with ThreadPoolExecutor(3) as pool:
        parts = [pool.submit(work, plan) for work in (_start_s3, _start_mlflow, _start_ray)]
        for part in parts:
            part.result()
    _deploy(plan)
    plan.report("ready", f"after {time.monotonic() - began:.0f} s")


def _start_s3(plan: Plan) -> None:
    keys = {name: plan.home.secret(f"s3_{name}") for name in ("access_key", "secret_key")}
    with _stage(plan, "object store"):
        plan.note("s3", services.start_s3(
            plan.home.root, plan.state.ports["s3"], bucket=BUCKET, die_with_parent=False, **keys
        ))  # fmt: skip


def _start_mlflow(plan: Plan) -> None:
    with _stage(plan, "mlflow"):
        plan.note("mlflow", services.start_mlflow(plan.home.root, plan.state.ports["mlflow"], die_with_parent=False))


def _start_ray(plan: Plan) -> None:
    """Ray gives its own start 30 s, which a busy machine may not keep: so it is tried three times."""
    port = plan.state.ports["ray"]
    low = 21000 + port % 20 * 200
    log = plan.home.logs / "ray.log"
    command = [
        Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1",
        f"--port={port}", "--include-dashboard=false", "--num-cpus=2", "--object-store-memory=200000000",
        f"--min-worker-port={low}", f"--max-worker-port={low + 199}", f"--temp-dir={plan.home.ray_dir}",
        "--disable-usage-stats",
    ]  # fmt: skip
    with _stage(plan, "ray"):
        for tries_left in (2, 1, 0):
            log.write_text("")
            child = plan.note("ray", processes.spawn(command, log))
            try:
                processes.wait_until(lambda: "--block" in log.read_text(), "ray", 90, child, log)
                return
            except ValueError:
                if not tries_left:
                    raise
                plan.report("ray", f"did not start, trying again: {processes.last_line(log)[:100]}")
                plan.forget("ray")
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)  # what it had started


def _deploy(plan: Plan) -> None:
    """The deployments, by a process of its own: this one stays without Ray."""
    log = plan.home.logs / "deploy.log"
    child = processes.spawn([sys.executable, "-m", "infra.deploy", str(plan.home.root)], log)
    url = plan.state.url("gateway")
    told = len(log.read_text().splitlines())

    def deployed() -> bool:
        nonlocal told
        lines = log.read_text(errors="replace").splitlines()
        for line in lines[told:]:
            if line.startswith(DEPLOYS):
                plan.report("deployments", f"waiting for {line.removeprefix(DEPLOYS)}")
        told = len(lines)
        return child.poll() == 0

    with _stage(plan, "deployments"):
        processes.wait_until(deployed, "deployments", READY_S, child, log)

    ray = next(p for p in plan.state.processes if p.name == "ray")
    began = time.monotonic()
    plan.report("engine", "loading the model")
    while not services.answers(f"{url}/healthz"):
        if ray.process() is None:
            raise ValueError(f"ray ended: {processes.last_line(plan.home.logs / 'ray.log')}")
        if time.monotonic() - began > READY_S:
            raise ValueError(f"the engine was not ready after {READY_S:.0f} s; see {plan.home.logs}")
        time.sleep(0.3)
    plan.report("engine", f"answers after {time.monotonic() - began:.1f} s")


@contextmanager
def _stage(plan: Plan, part: str) -> Iterator[None]:
    plan.report(part, "starting")
    began = time.monotonic()
    yield
    plan.report(part, f"[green]ready[/green] after {time.monotonic() - began:.1f} s")


def _drain(home: Home, state: State) -> None:
    """Let learner and trainer write what they have. A system that does not answer is ended all the same."""
    environ = {**os.environ, **ray_environ(home), processes.MARK: state.instance}
    command = [sys.executable, "-m", "infra.deploy", str(home.root), "--drain"]
    with (home.logs / "deploy.log").open("ab") as log:
        try:
            subprocess.run(command, env=environ, stdout=log, stderr=log, timeout=130, check=False)
        except subprocess.TimeoutExpired:
            return


def _end(home: Home, state: State) -> None:
    """End the processes of a system, Ray first: what it runs still writes to the stores.

    Ray's workers do not listen to SIGTERM; all that they know is written by now, so they are killed after some seconds.
    """
    for names in (("ray",), ("mlflow", "s3")):
        roots = [s.process() for s in state.processes if s.name in names]
        alive = [process for process in roots if process is not None]
        family = {child for process in alive for child in (process, *process.children(recursive=True))}
        processes.end(list(family), patience_s=6.0)
    processes.end(processes.of_instance(state.instance), patience_s=5)
    home.forget_state()
    if home.ray_dir.parent != home.root:
        shutil.rmtree(home.ray_dir, ignore_errors=True)


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(home.alone())
        except BlockingIOError:
            raise ValueError(f"another clawrl is starting or stopping the system in {home.root}; wait for it") from None
        yield


def _addresses(home: Home, settings: Settings, state: State, console: Console) -> None:
    console.print(f"\n  OpenAI API   {state.url('gateway')}/v1   (model {settings.model.name})")
    console.print(f"  API key      {home.secret('api_key')}")
    console.print(f"  MLflow       {state.url('mlflow')}")
    console.print(f"  S3           {state.url('s3')}   (keys in {home.root})\n")


__all__ = ["Started", "preflight", "ray_environ", "start", "stop"]
