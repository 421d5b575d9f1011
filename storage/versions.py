"""Weight versions: numbered, immutable, in one line of descent, committed by writing a manifest last.

What it does: upload shards, commit, withdraw, list, head, lineage, what was consumed, download, prune; the trainer's
lease with its fence.
What it leaves out: MLflow's view of the same versions (`storage/registry.py`), and what the weights mean.

    weights/<model>/v000013/manifest.json            the commit: written last, only if absent
    weights/<model>/v000013/<update_id>/...          the shards: a folder that transformers loads
    weights/<model>/v000013/withdrawn.json           this version, and what descends from it, is no longer learned from
    weights/<model>/lease.json                       who trains, until when, with which fence

Two trainers that race for a number upload side by side (the update id keeps them apart) and only one manifest is
written. A number whose manifest exists is never given again, whatever became of its weights.
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from storage.arrow import dumps, from_json, to_json
from storage.lease import Lease, LeaseHeld, LeaseLost, take_lease
from storage.objects import AlreadyThere, NotThere, ObjectStore
from storage.records import Shard, Version

__all__ = ["CommitConflict", "Lease", "LeaseHeld", "LeaseLost", "VersionStore", "WeightsGone"]

ADAPTER = "adapter_model.safetensors"  # a version with this shard holds only what it changes in its base
MARK = ".version.json"  # in a local copy: which update it holds


class CommitConflict(ValueError):
    """Another update was committed first, or this trainer's lease is not the newest: load the head and go on."""


class WeightsGone(ValueError):
    """The version exists, but its weights were pruned or are damaged."""


class VersionStore:
    """The versions of one model in an object store. Manifests are read once: they never change."""

    def __init__(self, objects: ObjectStore, model: str) -> None:
        self.objects, self.model = objects, model
        self._base = f"weights/{model}/"
        self._manifests: dict[int, Version] = {}
        self._withdrawn: dict[int, str] = {}
        self._consumed: tuple[int, frozenset[str]] | None = None
        self._looking = False  # inside `one_look`: what was listed is taken as it is

    # reading

    @contextlib.contextmanager
    def one_look(self) -> Iterator[None]:
        """List the versions once for all that is asked in this block, instead of at each question. One thread only."""
        self._refresh()
        self._looking = True
        try:
            yield
        finally:
            self._looking = False

    def versions(self) -> list[Version]:
        """All committed versions, withdrawn ones too, ascending by number."""
        self._refresh()
        return [self._manifests[number] for number in sorted(self._manifests)]

    def get(self, number: int) -> Version:
        """One committed version. ValueError where there is none."""
        if number not in self._manifests:
            try:
                data = self.objects.get(self._key(number, "manifest.json"))
            except NotThere as fault:
                raise ValueError(f"{self.model} has no version {number}: the newest is {self._newest()}") from fault
            self._manifests[number] = from_json(Version, orjson.loads(data))
        return self._manifests[number]

    def head(self) -> Version | None:
        """The version that the next update starts from: the newest that is not withdrawn, nor descends from one."""
        self._refresh()
        for number in sorted(self._manifests, reverse=True):
            if not self._withdrawn.keys() & set(self.lineage(number)):
                return self._manifests[number]
        return None

    def next_number(self) -> int:
        """One more than the highest number ever committed."""
        self._refresh()
        return max(self._manifests, default=-1) + 1

    def lineage(self, number: int) -> list[int]:
        """The version, its parent, and so on to the base weights."""
        line, at = [], number
        while at is not None:
            line.append(at)
            parent = self.get(at).parent
            assert parent is None or parent < at, f"version {at} names {parent} as its parent"
            at = parent
        return line

    def base_of(self, number: int) -> int:
        """The version that holds the weights which a version's adapter changes; its own number if it holds them all."""
        for each in self.lineage(number):
            if not any(shard.name == ADAPTER for shard in self.get(each).shards):
                return each
        raise WeightsGone(f"version {number} is an adapter, and none of its ancestors holds all weights")

    def consumed(self, number: int) -> frozenset[str]:
        """The ids of the samples that this version and its ancestors were trained on."""
        if self._consumed is not None and self._consumed[0] == number:
            return self._consumed[1]
        before, ids = self._consumed or (None, frozenset()), set()
        for at in self.lineage(number):
            if at == before[0]:
                ids |= before[1]
                break
            ids.update(self.get(at).sample_ids)
        self._consumed = (number, frozenset(ids))
        return self._consumed[1]

    def withdrawn(self) -> dict[int, str]:
        """The withdrawn numbers, each with its reason."""
        self._refresh()
        return dict(self._withdrawn)

    # writing

    def upload(self, number: int, update_id: str, folder: Path) -> tuple[str, tuple[Shard, ...]]:
        """Upload a folder's files (not its subfolders) for a version to be committed: its source and its shards."""
        shards = []
        files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MARK)
        if not files:
            raise ValueError(f"nothing to upload: {folder} has no files")
        for path in files:
            self.objects.upload_file(path, self._key(number, update_id, path.name))
            shards.append(Shard(name=path.name, sha256=_sha256(path), size=path.stat().st_size))
        return self.objects.url(self._key(number, update_id)), tuple(shards)

    def commit(self, version: Version, *, again: bool = False) -> None:
        """Write the manifest: from now on the version exists, and its samples are consumed. Twice is as good as once.

        CommitConflict where the number is taken, the parent is not the head, a newer lease was given out, or a sample
        was consumed already (`again` allows that: epochs of a wave).
        """
        assert version.model == self.model, f"a version of {version.model} in the store of {self.model}"
        head = self.head()
        if version.number in self._manifests and self.get(version.number).update_id == version.update_id:
            return
        if version.parent != (head.number if head else None):
            raise CommitConflict(f"version {version.number} descends from {version.parent}, but the head is {head}")
        if version.number < self.next_number():
            raise CommitConflict(f"version {version.number} of {self.model} exists already")
        fence = self.fence()
        if version.fence < fence:
            raise CommitConflict(f"the trainer of version {version.number} has fence {version.fence}, now {fence}")
        twice = set(version.sample_ids) & self.consumed(head.number) if head and not again else set()
        if twice:
            raise CommitConflict(f"{len(twice)} samples of version {version.number} were consumed before: {min(twice)}")
        try:
            self.objects.put(self._key(version.number, "manifest.json"), to_json(version), if_none_match=True)
        except AlreadyThere as fault:
            raise CommitConflict(
                f"version {version.number} of {self.model} was committed by another trainer"
            ) from fault
        self._manifests[version.number] = version

    def withdraw(self, number: int, reason: str) -> None:
        """Take a version out of the line: learning goes on from before it. The first reason stays."""
        self.get(number)
        note = {"number": number, "reason": reason, "at": time.time()}
        try:
            self.objects.put(self._key(number, "withdrawn.json"), dumps(note), if_none_match=True)
        except AlreadyThere:
            return

    def prune(self, keep: Iterable[int], last: int = 3) -> list[int]:
        """Delete weights (manifests stay) but of `keep`, of the newest `last` of the head's line, and newer uploads.

        What a lost race left behind under a committed number goes too. The numbers whose weights were deleted.
        """
        head = self.head()
        kept = {*keep, *(self.lineage(head.number)[:last] if head else ())}
        kept |= {self.base_of(number) for number in kept}
        newest, gone = max(self._manifests, default=-1), set()
        for key in self.objects.list(self._base):
            number, _, rest = self._split(key)
            if number is None or number > newest or "/" not in rest:
                continue
            update_id = rest.partition("/")[0]
            if number not in kept or update_id != self.get(number).update_id:
                self.objects.delete(key)
                gone.add(number)
        return sorted(gone)

    def download(self, number: int, to: Path) -> Path:
        """The version's weights as the folder `to`: whole or not at all. A complete copy there is used again.

        WeightsGone where they were pruned or do not match their hashes.
        """
        version = self.get(number)
        if _is_copy(version, to):
            return to
        part = to.with_name(f".{to.name}.{os.getpid()}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            for shard in version.shards:
                self._fetch(version, shard, part / shard.name)
            (part / MARK).write_bytes(dumps({"number": number, "update_id": version.update_id}))
            if to.exists():
                shutil.rmtree(to)
            part.rename(to)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return to

    def _fetch(self, version: Version, shard: Shard, path: Path) -> None:
        key = self._key(version.number, version.update_id, shard.name)
        try:
            self.objects.download_file(key, path)
        except NotThere as fault:
            raise WeightsGone(f"the weights of version {version.number} were pruned: choose a newer one") from fault
        if path.stat().st_size != shard.size or _sha256(path) != shard.sha256:
            raise WeightsGone(f"{self.objects.url(key)} is not what was committed: its SHA-256 differs")

    # the lease

    def acquire_lease(self, holder: str, ttl_s: float = 30.0, wait_s: float = 0.0) -> Lease:
        """Become the model's one trainer. LeaseHeld, saying by whom and until when, if it is not free in `wait_s`."""
        return take_lease(self.objects, f"{self._base}lease.json", holder, ttl_s, wait_s)

    def fence(self) -> int:
        """The newest fence given out, 0 before the first."""
        try:
            return int(json.loads(self.objects.get(f"{self._base}lease.json"))["fence"])
        except NotThere:
            return 0

    # inside

    def _key(self, number: int, *rest: str) -> str:
        return "/".join((f"{self._base}v{number:06d}", *rest))

    def _split(self, key: str) -> tuple[int | None, str, str]:
        folder, _, rest = key.removeprefix(self._base).partition("/")
        return (int(folder[1:]) if folder[1:].isdigit() else None), folder, rest

    def _newest(self) -> str:
        return f"{self.next_number() - 1}" if self.next_number() else "none yet"

    def _refresh(self) -> None:
        """Read the manifests and withdrawals that are new since the last time: one listing when there are none."""
        if self._looking:
            return
        for key in self.objects.list(self._base):
            number, _, rest = self._split(key)
            if number is None:
                continue
            if rest == "manifest.json" and number not in self._manifests:
                self.get(number)
            elif rest == "withdrawn.json" and number not in self._withdrawn:
                self._withdrawn[number] = orjson.loads(self.objects.get(key))["reason"]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_copy(version: Version, folder: Path) -> bool:
    """Whether a local folder holds this version whole. Hashes are read where no download of ours left its mark."""
    for shard in version.shards:
        path = folder / shard.name
        if not path.is_file() or path.stat().st_size != shard.size:
            return False
    mark = folder / MARK
    if mark.exists():
        return orjson.loads(mark.read_bytes())["update_id"] == version.update_id
    return all(_sha256(folder / shard.name) == shard.sha256 for shard in version.shards)
