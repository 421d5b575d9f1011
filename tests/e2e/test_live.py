"""The main job: talk, be corrected, learn, serve better weights; nothing interrupted or lost, all of it visible."""

import json
import threading
import time
from pathlib import Path

import polars as pl
import pytest
from openai import OpenAI
from safetensors.torch import load_file

from infra.admin import Running
from storage import dataset
from tests.e2e.conftest import clawrl, converse, wait_for

pytestmark = pytest.mark.e2e
GOOD, BAD = "Perfect, thank you! Exactly what I wanted.", "No, that is wrong. Start with the number, please."


def teach(client: OpenAI, system: Running, turns: int, seed: str) -> None:
    """`turns` judged answers. Answers cut by length do not train by default, so the settings of a test allow room."""
    for i in range(turns):
        converse(
            client,
            system.settings.model.name,
            [f"({seed}{i}) Say hello.", GOOD if i % 2 else BAD],
            max_tokens=96,
            session=f"lesson-{seed}-{i}",
            temperature=0.7,
        )


def learn_one_version(client: OpenAI, system: Running, seed: str) -> dict:
    head = wait_for(system, lambda s: s["learner"]["head"] is not None, "a head")["learner"]["head"]
    for round_ in range(6):
        teach(client, system, 4, f"{seed}{round_}")
        status = system.admin()
        if status["learner"]["head"] > head or status["learner"]["training_since"]:
            break
    return wait_for(
        system, lambda s: s["policy"]["version"] == s["learner"]["head"] > head, f"a version after {head} to serve", 240
    )


@pytest.fixture(scope="module")
def learned(system: Running) -> dict:
    """The system after an update, made while someone else streamed without pause."""
    client = OpenAI(base_url=system.base_url, api_key=system.api_key, max_retries=0, timeout=120)
    over, cut = threading.Event(), []

    def stream_on() -> None:
        while not over.is_set():
            stream = client.chat.completions.create(
                model=system.settings.model.name,
                messages=[{"role": "user", "content": "Count from one to twenty."}],
                stream=True,
                max_tokens=60,
                extra_headers={"X-Turn-Type": "side"},
            )
            finishes = [choice.finish_reason for chunk in stream for choice in chunk.choices]
            if finishes[-1] not in ("stop", "length"):
                cut.append(finishes[-1])

    listener = threading.Thread(target=stream_on)
    listener.start()
    try:
        status = learn_one_version(client, system, "first")
    finally:
        over.set()
        listener.join()
    assert cut == [], "an answer was cut while weights swapped"
    return status


def test_megatron_made_it_and_what_is_served_is_what_was_committed(
    system: Running, learned: dict, tmp_path: Path
) -> None:
    versions = system.versions()
    version = versions.get(learned["policy"]["version"])
    assert version.parent is not None and len(version.sample_ids) >= 4
    assert version.trainer.startswith("megatron-core")
    assert learned["policy"]["sha256"] == {shard.name: shard.sha256 for shard in version.shards}
    new = load_file(versions.download(version.number, tmp_path / "new") / "model.safetensors")
    old = load_file(versions.download(version.parent, tmp_path / "old") / "model.safetensors")
    assert new.keys() == old.keys()
    assert any(not new[name].equal(old[name]) for name in new)


def test_mlflow_has_it_and_transformers_loads_it(system: Running, learned: dict, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    number = learned["policy"]["version"]
    registry, version = system.registry(), system.versions().get(number)
    tags = registry.tags(number)
    assert tags["parent"] == str(version.parent) and tags["samples"] == str(len(version.sample_ids))
    assert registry.alias("live") == number
    folder = system.versions().download(number, tmp_path / "v")
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 1_000_000


def test_every_turn_is_explained(system: Running, learned: dict) -> None:
    rows = [json.loads(line) for line in clawrl(system.home, "sessions", "--json", "--last", "500").stdout.splitlines()]
    trained = [row for row in rows if row.get("trained_in") == learned["policy"]["version"]]
    assert trained and all(row["kind"] == "main" and row["next_state"] and row["reward"] in (1, -1) for row in trained)
    assert {row["reward"] for row in trained} == {1, -1}
    assert any(row["hint"] and "number" in row["hint"] for row in trained)
    side = [row for row in rows if row["kind"] == "side"]
    assert side and all(row["why_kind"] and row["reason"] and row.get("trained_in") is None for row in side)
    assert "trained" in clawrl(system.home, "sessions", "--last", "500").stdout


def test_rollback_and_resume(system: Running, learned: dict, client: OpenAI) -> None:
    learn_one_version(client, system, "second")
    head = system.admin()["learner"]["head"]
    parent = system.versions().get(head).parent
    began = time.monotonic()
    clawrl(system.home, "rollback")
    assert time.monotonic() - began < 30
    status = wait_for(system, lambda s: s["learner"]["pinned"] == parent, "the learner to see the pin")
    assert status["policy"]["version"] == parent
    answer = client.chat.completions.with_raw_response.create(
        model=system.settings.model.name, messages=[{"role": "user", "content": "Hi"}], max_tokens=4
    )
    assert answer.headers["x-weight-version"] == str(parent)
    clawrl(system.home, "resume")
    status = wait_for(system, lambda s: s["learner"]["head"] == parent, "the pinned version to be the head")
    assert head in system.versions().withdrawn()
    again = learn_one_version(client, system, "third")
    assert again["learner"]["head"] == head + 1, "numbers are never used again"
    assert system.versions().get(head + 1).parent == parent


def test_sealed_parquet_is_read_with_polars(system: Running, learned: dict) -> None:
    objects, until = system.objects(), time.monotonic() + 90
    while not objects.list("samples/") and time.monotonic() < until:
        time.sleep(1)
    frame = dataset.scan("samples", objects, track="personal").collect()
    assert frame.height >= 4 and set(frame["reward"].unique()) <= {-1.0, 1.0}
    plain = pl.scan_parquet(objects.url("exchanges/**/*.parquet"), storage_options=objects.polars_options()).collect()
    assert plain.filter(pl.col("kind") == "main").height >= 4
    ids = frame["sample_id"].to_list()
    assert len(ids) == len(set(ids))


def test_a_second_up_finds_the_first(system: Running) -> None:
    assert "already up" in clawrl(system.home, "up").stdout


def test_status_for_people_and_machines(system: Running, learned: dict) -> None:
    data = json.loads(clawrl(system.home, "status", "--json").stdout)
    assert data["running"] and data["learner"]["turns"]["trained"] >= 4
    page = clawrl(system.home, "status").stdout
    assert "serves" in page and "samples" in page and "did not count" in page
