"""Measure the gateway against the bare engine behind it, on a running system.

What it does: interleaved pairs (engine, gateway, engine, …) with the same prompt ids, so that what else the machine
does falls on both: time to first token with one client, tokens/s with eight, CPU of the gateway (and of Serve's proxy,
where there is one) per request and per streamed token, how tokens travel in chunks, and thirty requests in flight
while the weights are swapped five times.
What it leaves out: starting the system, the training step.
How to run it: `clawrl bench gateway`, or with the API key in CLAWRL_API_KEY
`python -m infra.bench_gateway --url http://127.0.0.1:PORT --model-dir DIR [--quick]`
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil

from serve.engine_client import EngineClient
from serve.rendering import Renderer

PROMPT = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Tell me in a few sentences how bread is made, and why the dough has to rest."},
]


@dataclass(frozen=True, kw_only=True)
class Target:
    """The running system."""

    url: str  # the gateway's
    key: str
    model: str
    engine_url: str
    weights: str  # the folder that the engine serves
    version: int
    pids: tuple[int, ...]  # the gateway's process, and Serve's proxies


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One streamed answer, as its client saw it."""

    first_s: float  # to the first token
    total_s: float
    tokens: int
    chunks: int  # that carried text
    finish: str | None
    status: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was measured. Goals: first token 15 ms, throughput 0.95, 3 ms a request, 1 ms a token, 0.8, no failures."""

    first_token_direct_p50_ms: float
    first_token_gateway_p50_ms: float
    first_token_later_p50_ms: float  # median of the pairs' differences
    throughput_direct: float  # tokens/s, 8 clients, median of rounds
    throughput_gateway: float
    throughput_ratio: float  # median of the pairs' ratios
    cpu_ms_per_request: float
    cpu_ms_per_token: float
    tokens_in_own_chunk: float  # share
    first_chunk_share: float  # of an answer's time that had passed at its first token
    swap_requests: int
    swap_failed: int
    swap_cut: int
    swap_seconds: tuple[float, ...]


async def find(url: str, key: str) -> Target:
    """Ask the gateway where everything is."""
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession() as http, http.get(url + "/admin/status", headers=headers) as response:
        response.raise_for_status()
        status = await response.json()
    policy, pid = status["policy"], status["gateway"]["pid"]
    if policy.get("state") != "ready":
        raise ValueError(f"the policy is {policy.get('state') or policy}: wait until it is ready")
    proxies = [p.pid for p in psutil.process_iter(["cmdline"]) if "ray::ProxyActor" in (p.info["cmdline"] or [""])[0]]
    return Target(
        url=url, key=key, model=status["model"], engine_url=policy["url"], weights=policy["path"],
        version=policy["version"], pids=(pid, *proxies),
    )  # fmt: skip


class Clients:
    """Sends the same answer's request to the engine or to the gateway."""

    def __init__(self, target: Target, prompt_ids: Sequence[int], http: aiohttp.ClientSession) -> None:
        self.target, self._ids, self._http = target, list(prompt_ids), http

    async def direct(self, tokens: int) -> Sent:
        """To the engine, with what the gateway sends it."""
        body = {
            "input_ids": self._ids,
            "sampling_params": {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": tokens, "ignore_eos": True},
            "stream": True,
            "return_logprob": True,
            "logprob_start_len": -1,
        }
        return await self._send(self.target.engine_url + "/generate", body, {}, _engine_event)

    async def gateway(self, tokens: int) -> Sent:
        """To the gateway."""
        body = {
            "model": self.target.model,
            "messages": PROMPT,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"authorization": f"Bearer {self.target.key}"}
        return await self._send(self.target.url + "/v1/chat/completions", body, headers, _gateway_event)

    async def whole(self) -> None:
        """An answer of one token from the gateway, not streamed."""
        body = {"model": self.target.model, "messages": PROMPT, "max_tokens": 1, "ignore_eos": True}
        headers = {"authorization": f"Bearer {self.target.key}"}
        async with self._http.post(self.target.url + "/v1/chat/completions", json=body, headers=headers) as response:
            response.raise_for_status()
            await response.read()

    async def _send(self, url: str, body: dict[str, Any], headers: dict[str, str], read: "Reader") -> Sent:
        began = time.perf_counter()
        first, tokens, chunks, finish, rest = None, 0, 0, None, b""
        async with self._http.post(url, data=orjson.dumps(body), headers={**JSON, **headers}) as response:
            async for data in response.content.iter_any():
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    if not event.startswith(b"data: {"):
                        continue
                    count, text, ended = read(orjson.loads(event[6:]))
                    tokens, chunks, finish = max(tokens, count), chunks + text, ended or finish
                    if first is None and (text or count):
                        first = time.perf_counter() - began
        total = time.perf_counter() - began
        return Sent(first_s=first or total, total_s=total, tokens=tokens, chunks=chunks, finish=finish,
                    status=response.status)  # fmt: skip


JSON = {"content-type": "application/json"}
Reader = Callable[[dict[str, Any]], tuple[int, bool, str | None]]  # tokens so far, has text, why it ended


def _engine_event(event: dict[str, Any]) -> tuple[int, bool, str | None]:
    meta = event["meta_info"]
    return meta["completion_tokens"], bool(event["output_ids"]), (meta["finish_reason"] or {}).get("type")


def _gateway_event(event: dict[str, Any]) -> tuple[int, bool, str | None]:
    if "error" in event:
        return 0, False, "error"
    usage = event.get("usage") or {}
    choice = event["choices"][0] if event["choices"] else {"delta": {}, "finish_reason": None}
    return usage.get("completion_tokens", 0), bool(choice["delta"].get("content")), choice["finish_reason"]


async def first_token(clients: Clients, pairs: int) -> tuple[list[float], list[float]]:
    """[pairs] seconds, direct and through the gateway; which one goes first alternates."""
    for send in (clients.direct, clients.gateway):  # the prefix is cached, connections are open
        await send(2)
    direct, gateway = [], []
    for pair in range(pairs):
        order = [(clients.direct, direct), (clients.gateway, gateway)]
        for send, times in order if pair % 2 else reversed(order):
            times.append((await send(4)).first_s)
    return direct, gateway


async def throughput(clients: Clients, rounds: int, tokens: int) -> tuple[list[float], list[float], list[Sent]]:
    """[rounds] tokens/s with eight clients, direct and through the gateway, and the gateway's answers."""
    direct: list[float] = []
    gateway: list[float] = []
    answers: list[Sent] = []
    for turn in range(rounds):
        order = [(clients.direct, direct), (clients.gateway, gateway)]
        for send, rates in order if turn % 2 else reversed(order):
            began = time.perf_counter()
            sent = await asyncio.gather(*(send(tokens) for _ in range(8)))
            rates.append(sum(one.tokens for one in sent) / (time.perf_counter() - began))
            if send == clients.gateway:
                answers += sent
    return direct, gateway, answers


def _cpu_s(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(time.user + time.system for time in times)


async def _cpu_of(pids: Sequence[int], idle: float, work: Coroutine[Any, Any, Any]) -> float:
    """CPU seconds that `work` cost these processes, what they use when idle taken off."""
    began, before = time.perf_counter(), _cpu_s(pids)
    await work
    return _cpu_s(pids) - before - idle * (time.perf_counter() - began)


async def cpu(clients: Clients, requests: int, tokens: int) -> tuple[float, float]:
    """Milliseconds per request, and per streamed token."""
    pids = clients.target.pids
    before, began = _cpu_s(pids), time.perf_counter()
    await asyncio.sleep(4)
    idle = (_cpu_s(pids) - before) / (time.perf_counter() - began)

    async def ones() -> None:
        for _ in range(requests):
            await clients.whole()

    per_request = await _cpu_of(pids, idle, ones()) / requests
    streamed = await _cpu_of(pids, idle, asyncio.gather(*(clients.gateway(tokens) for _ in range(8))))  # type: ignore[arg-type]
    return per_request * 1e3, max(0.0, streamed - 8 * per_request) / (8 * tokens) * 1e3


async def swaps(clients: Clients, requests: int, times: int, tokens: int) -> tuple[list[Any], list[float]]:
    """Answers that ran while the weights were swapped, and the seconds that each swap took."""
    engine = EngineClient(clients.target.engine_url)
    running = [asyncio.create_task(clients.gateway(tokens)) for _ in range(requests)]
    took = []
    for _ in range(times):
        await asyncio.sleep(1.5)
        began = time.perf_counter()
        await engine.load(clients.target.weights, clients.target.version)
        took.append(time.perf_counter() - began)
    answers = await asyncio.gather(*running, return_exceptions=True)
    await engine.close()
    return answers, took


async def measure(url: str, key: str, model_dir: Path, *, quick: bool = False) -> Report:
    """Everything; some two minutes on a laptop, `quick` a third of that."""
    target = await find(url, key)
    ids = Renderer(model_dir).prompt_ids(PROMPT)
    scale = 1 if quick else 3
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        clients = Clients(target, ids, http)
        direct, gateway = await first_token(clients, 12 * scale)
        fast, through, answers = await throughput(clients, 2 * scale, 48)
        per_request, per_token = await cpu(clients, 10 * scale, 64)
        swapped, took = await swaps(clients, 30, 5, 48)
    good = [one for one in swapped if isinstance(one, Sent) and one.status == 200 and one.finish != "error"]
    return Report(
        first_token_direct_p50_ms=statistics.median(direct) * 1e3,
        first_token_gateway_p50_ms=statistics.median(gateway) * 1e3,
        first_token_later_p50_ms=statistics.median(b - a for a, b in zip(direct, gateway, strict=True)) * 1e3,
        throughput_direct=statistics.median(fast),
        throughput_gateway=statistics.median(through),
        throughput_ratio=statistics.median(b / a for a, b in zip(fast, through, strict=True)),
        cpu_ms_per_request=per_request,
        cpu_ms_per_token=per_token,
        tokens_in_own_chunk=sum(one.chunks for one in answers) / sum(one.tokens for one in answers),
        first_chunk_share=statistics.median(one.first_s / one.total_s for one in answers),
        swap_requests=len(swapped),
        swap_failed=len(swapped) - len(good),
        swap_cut=sum(one.tokens < 48 for one in good),
        swap_seconds=tuple(took),
    )


def main() -> None:
    """Prints the report."""
    parser = argparse.ArgumentParser(prog="python -m infra.bench_gateway", description=main.__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    key = os.environ.get("CLAWRL_API_KEY", "")
    report = asyncio.run(measure(given.url.rstrip("/"), key, given.model_dir, quick=given.quick))
    print(json.dumps(asdict(report), indent=2))


if __name__ == "__main__":
    main()
