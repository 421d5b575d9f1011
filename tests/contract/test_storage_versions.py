"""Versions against a real S3: one line of descent whatever races and crashes, whole downloads, fenced leases."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.objects import ObjectStore
from storage.records import Version, new_id
from storage.versions import CommitConflict, LeaseHeld, LeaseLost, VersionStore, WeightsGone
from tests.contract.conftest import S3
from tests.unit.storage import builders
from tests.unit.storage.builders import MODEL


@pytest.fixture
def versions(objects: ObjectStore) -> VersionStore:
    return VersionStore(objects, MODEL)


def folder(tmp_path: Path, name: str = "made", size: int = 1000) -> Path:
    """A folder with weights of some kind, and a subfolder that is not uploaded."""
    made = tmp_path / name
    (made / "optimizer").mkdir(parents=True)
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(os.urandom(size))
    return made


def commit(versions: VersionStore, number: int, parent: int | None, made: Path | None = None, **changes) -> Version:
    update_id = new_id()
    if made is not None:
        source, shards = versions.upload(number, update_id, made)
        changes |= {"source": source, "shards": shards}
    version = builders.version(number, parent, update_id=update_id, **changes)
    versions.commit(version)
    return version


def test_line_of_descent(versions: VersionStore, objects: ObjectStore) -> None:
    assert (versions.head(), versions.next_number(), versions.versions()) == (None, 0, [])
    base = commit(versions, 0, None)
    commit(versions, 1, 0, sample_ids=("a", "b"))
    last = commit(versions, 2, 1, sample_ids=("c",))
    fresh = VersionStore(objects, MODEL)
    assert fresh.head() == last
    assert fresh.versions()[0] == base
    assert fresh.lineage(2) == [2, 1, 0]
    assert fresh.consumed(1) == {"a", "b"}
    assert fresh.consumed(2) == versions.consumed(2) == {"a", "b", "c"}
    assert fresh.next_number() == 3
    with pytest.raises(ValueError, match="has no version 7: the newest is 2"):
        fresh.get(7)


def test_conflicts(versions: VersionStore, objects: ObjectStore) -> None:
    commit(versions, 0, None)
    one = commit(versions, 1, 0, sample_ids=("a",))
    versions.commit(one)  # again, after an answer that was lost
    with pytest.raises(CommitConflict, match=r"exists already|the head is"):
        VersionStore(objects, MODEL).commit(builders.version(1, 0))
    with pytest.raises(CommitConflict, match="descends from 0, but the head is"):
        commit(versions, 2, 0)
    with pytest.raises(CommitConflict, match="1 samples of version 2 were consumed before: a"):
        commit(versions, 2, 1, sample_ids=("a", "b"))
    versions.commit(builders.version(2, 1, sample_ids=("a",)), again=True)  # the second epoch of a wave
    lease = versions.acquire_lease("one", ttl_s=0.01)
    time.sleep(0.05)
    versions.acquire_lease("two")
    with pytest.raises(CommitConflict, match="has fence 1, now 2"):
        commit(versions, 3, 2, fence=lease.fence)


def test_race_for_a_number(versions: VersionStore, objects: ObjectStore) -> None:
    commit(versions, 0, None)
    gate = threading.Barrier(8)

    def race(me: int) -> str | None:
        store = VersionStore(objects, MODEL)
        mine = builders.version(1, 0, sample_ids=(f"s{me}",))
        gate.wait()
        try:
            store.commit(mine)
        except CommitConflict:
            return None
        return mine.update_id

    with ThreadPoolExecutor(8) as pool:
        won = [update_id for update_id in pool.map(race, range(8)) if update_id]
    assert won == [versions.head().update_id]
    assert len(versions.consumed(1)) == 1


def test_withdrawing(versions: VersionStore, objects: ObjectStore) -> None:
    for number in range(4):
        commit(versions, number, number - 1 if number else None, sample_ids=(f"s{number}",))
    versions.withdraw(3, "probation: empty answers")
    versions.withdraw(3, "another reason")
    assert versions.head().number == 2
    assert VersionStore(objects, MODEL).withdrawn() == {3: "probation: empty answers"}
    assert versions.next_number() == 4
    branch = commit(versions, 4, 2, sample_ids=("s3",))  # what a withdrawn version consumed is free again
    assert versions.lineage(4) == [4, 2, 1, 0]
    assert versions.head() == branch
    versions.withdraw(1, "bad from here on")  # and with it all that descends from it
    assert versions.head().number == 0
    with pytest.raises(ValueError, match="has no version 9"):
        versions.withdraw(9, "?")


def test_crash_before_the_manifest_commits_nothing(
    versions: VersionStore, objects: ObjectStore, tmp_path: Path
) -> None:
    commit(versions, 0, None)
    versions.upload(1, new_id(), folder(tmp_path))
    fresh = VersionStore(objects, MODEL)
    assert (fresh.head().number, fresh.next_number(), fresh.consumed(0)) == (0, 1, frozenset())
    made = commit(fresh, 1, 0, tmp_path / "made")
    assert len(objects.list(f"weights/{MODEL}/v000001/")) == 5
    fresh.prune(keep=())  # what the crash left goes, the committed shards stay
    assert len(objects.list(f"weights/{MODEL}/v000001/")) == 3
    assert fresh.download(1, tmp_path / "got") and made.shards[1].size == 1000


def test_download(versions: VersionStore, objects: ObjectStore, tmp_path: Path) -> None:
    made = folder(tmp_path)
    version = commit(versions, 0, None, made)
    assert [shard.name for shard in version.shards] == ["config.json", "model.safetensors"]
    assert version.source == objects.url(f"weights/{MODEL}/v000000/{version.update_id}")
    got = versions.download(0, tmp_path / "local" / "v000000")
    assert (got / "model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()
    before = (got / "model.safetensors").stat().st_ino
    assert (versions.download(0, got) / "model.safetensors").stat().st_ino == before  # used again
    assert versions.download(0, made) == made  # a trainer's own folder is as good
    (got / "model.safetensors").write_bytes(b"torn")
    assert (versions.download(0, got) / "model.safetensors").stat().st_size == 1000  # damaged: fetched again
    assert [path.name for path in got.parent.iterdir()] == ["v000000"]
    objects.put(f"weights/{MODEL}/v000000/{version.update_id}/model.safetensors", b"x" * 1000)
    with pytest.raises(WeightsGone, match="its SHA-256 differs"):
        versions.download(0, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_prune_keeps_manifests(versions: VersionStore, objects: ObjectStore, tmp_path: Path) -> None:
    made = folder(tmp_path)
    for number in range(6):
        commit(versions, number, number - 1 if number else None, made, sample_ids=(f"s{number}",))
    versions.upload(6, new_id(), made)  # under way
    assert versions.prune(keep={0}, last=3) == [1, 2]
    assert versions.prune(keep={0}, last=3) == []
    with pytest.raises(WeightsGone, match="version 1 were pruned"):
        versions.download(1, tmp_path / "got")
    versions.download(0, tmp_path / "zero")
    assert len(objects.list(f"weights/{MODEL}/v000006/")) == 2
    fresh = VersionStore(objects, MODEL)
    assert (fresh.next_number(), len(fresh.consumed(5))) == (6, 6)


def test_lease(versions: VersionStore, s3: S3) -> None:
    first = versions.acquire_lease("trainer one", ttl_s=30)
    with pytest.raises(LeaseHeld, match=r"trainer one holds it until 20.* with fence 1"):
        versions.acquire_lease("trainer two")
    first.renew()
    first.release()
    second = versions.acquire_lease("trainer two", ttl_s=0.2)
    assert (first.fence, second.fence, versions.fence()) == (1, 2, 2)
    third = versions.acquire_lease("trainer three", wait_s=5)  # the second did not renew
    assert third.fence == 3
    with pytest.raises(LeaseLost, match="trainer three holds it"):
        second.renew()
    second.release()  # takes nothing from the third
    third.renew()
    with ThreadPoolExecutor(8) as pool:
        third.release()

        def attempt(me: int) -> int:
            try:
                return versions.acquire_lease(f"racer {me}").fence
            except LeaseHeld:
                return 0

        assert sorted(pool.map(attempt, range(8))) == [0] * 7 + [4]
