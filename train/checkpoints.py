"""The trainer's files: weight folders on this machine, and Adam's states here and in the object store.

What it does: fetches versions (hashes verified), publishes an exported folder by renaming it, clears what a crash left,
keeps the newest; saves Adam's state beside the work after each commit and finds the newest one that fits a head.
What it leaves out: committing (`storage/versions.py`), which versions the object store keeps (the driver prunes).

    <local_dir>/<model>/v000013/                 as committed; v000013.part while it is being made
    <local_dir>/<model>/optimizer/v000013/       and optimizer/<model>/v000013/ in the store (state.json comes last)
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from storage.objects import NotThere, ObjectStore, StoreDown
from storage.records import Version
from storage.versions import VersionStore
from train.group import Group, RankDied
from train.whole import MERGED, folder_name, whole_weights

if TYPE_CHECKING:
    from train.worker import Worker as LocalWorker

    Worker = LocalWorker | Group

log = logging.getLogger(__name__)
PART = ".part"
STATE = "state.json"  # of `train/megatron/state.py`: a folder without it is not whole
OPTIMIZER_STATES_KEPT = 2


def _number(name: str) -> int | None:
    """13 of v000013, else None."""
    return int(name[1:]) if name.startswith("v") and name[1:].isdigit() else None


class WeightFolders:
    """One model's weight folders on this machine."""

    def __init__(self, versions: VersionStore, local_dir: Path) -> None:
        self.versions = versions
        self.root = local_dir / versions.model
        self.root.mkdir(parents=True, exist_ok=True)

    def fetch(self, number: int) -> Path:
        """The folder of a committed version: the copy here if it matches its hashes, else downloaded."""
        return self.versions.download(number, self.root / folder_name(number))

    def whole(self, number: int) -> Path:
        """A folder with all its weights, also where the version is an adapter."""
        return whole_weights(self.versions, number, self.root)

    def part(self, number: int) -> Path:
        """Where a version is made; whatever lay there is gone."""
        path = self.root / (folder_name(number) + PART)
        shutil.rmtree(path, ignore_errors=True)
        return path

    def publish(self, number: int) -> None:
        """The folder that was made becomes the version's, once it is committed."""
        path = self.root / folder_name(number)
        if path.exists():  # somebody on this machine was quick to download it
            shutil.rmtree(self.root / (folder_name(number) + PART))
        else:
            (self.root / (folder_name(number) + PART)).rename(path)

    def adopt(self, base: Path) -> Path:
        """A folder with the base model's files (linked where the disk allows), made for version 0."""
        part = self.part(0)
        part.mkdir()
        for path in sorted(base.iterdir()):
            if path.is_file():
                try:
                    os.link(path.resolve(), part / path.name)  # what a link points to, not the link
                except OSError:  # another disk, or one without links
                    shutil.copyfile(path, part / path.name)
        return part

    def tidy(self) -> None:
        """Remove what a crash left half made."""
        for path in self.root.glob(f"*{PART}"):
            shutil.rmtree(path, ignore_errors=True)

    def keep(self, numbers: Collection[int]) -> None:
        """Remove the folders of all other versions."""
        kept = set(numbers) | {self.versions.base_of(number) for number in numbers}
        for path in self.root.iterdir():
            number = _number(path.name.removesuffix(MERGED))
            if path.is_dir() and number is not None and number not in kept:
                shutil.rmtree(path, ignore_errors=True)


class OptimizerStates:
    """Adam's states of one model, here and in the object store; the newest two of the head's line are kept."""

    def __init__(self, objects: ObjectStore, versions: VersionStore, local_dir: Path) -> None:
        self._objects, self._versions = objects, versions
        self._root = local_dir / versions.model / "optimizer"
        self._prefix = f"optimizer/{versions.model}/"
        self._saving: threading.Thread | None = None
        self._written = threading.Event()
        self._written.set()

    def save(self, worker: Worker, version: Version) -> None:
        """Plan here, write in a thread. `wait_written` before the optimiser steps again: the state is not copied."""
        self.wait()
        part = self._root / (folder_name(version.number) + PART)
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            begun = worker.begin_save(part, _identity(version))
        except (OSError, RankDied) as fault:  # boundary, as in _save
            log.warning("optimiser state of version %s was not saved: %s", version.number, fault)
            return
        if begun:
            self._written.clear()
            arguments = (worker, version, part)
            self._saving = threading.Thread(target=self._save, args=arguments, name="save-optimizer", daemon=True)
            self._saving.start()

    def wait_written(self) -> None:
        """Until the state is on this machine's disk (or could not be put there)."""
        self._written.wait()

    def wait(self) -> None:
        """Until it is in the object store too."""
        if self._saving is not None:
            self._saving.join()
            self._saving = None

    def load(self, worker: Worker, head: int) -> int | None:
        """Give the optimiser the newest state at or before the head in its line: that version's number, or None."""
        self.wait()
        line = self._versions.lineage(head)
        stored = [_number(name) for name in self._stored()]
        here = [_number(path.name) for path in self._root.glob("v*")]
        for number in sorted({*stored, *here} & set(line), reverse=True):
            folder = self._root / folder_name(number)
            for _ in range(1 + folder.exists()):  # a copy here that is torn is fetched again
                try:
                    if not folder.exists():
                        self._download(number, folder)
                    worker.load_state(folder, _identity(self._versions.get(number)))
                    return number
                except (ValueError, NotThere, OSError) as fault:  # torn, gone or another's: an older one will do
                    log.warning("optimiser state of version %s is left aside: %s", number, fault)
                    shutil.rmtree(folder, ignore_errors=True)
        worker.reset_state()
        return None

    def _stored(self) -> dict[str, list[str]]:
        """{name of a state in the store: its keys}, whole ones and others."""
        found: dict[str, list[str]] = {}
        for key in self._objects.list(self._prefix):
            found.setdefault(key.removeprefix(self._prefix).partition("/")[0], []).append(key)
        return found

    def _download(self, number: int, folder: Path) -> None:
        part = folder.with_name(folder.name + PART)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for key in self._stored().get(folder.name, []):
            self._objects.download_file(key, part / key.rpartition("/")[2])
        part.rename(folder)

    def _save(self, worker: Worker, version: Version, part: Path) -> None:
        folder = self._root / folder_name(version.number)
        try:
            worker.write_save()
            self._written.set()
            worker.finish_save()
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)
            for path in sorted(folder.iterdir(), key=lambda path: path.name == STATE):  # what makes it whole comes last
                self._objects.upload_file(path, f"{self._prefix}{folder.name}/{path.name}")
            self._prune(version.number)
        except (OSError, StoreDown, RankDied) as fault:  # boundary: the next version's will do, its age is recorded
            log.warning("optimiser state of version %s was not saved: %s", version.number, fault)
        finally:
            self._written.set()

    def _prune(self, head: int) -> None:
        """Keep the newest two of the head's line, here and there."""
        line = set(self._versions.lineage(head))
        here = {path.name for path in self._root.iterdir()}
        stored = self._stored()
        fit = sorted(name for name in here | stored.keys() if _number(name) in line)
        kept = fit[-OPTIMIZER_STATES_KEPT:]
        for name in here - set(kept):
            _remove(self._root / name)
        for name in stored.keys() - set(kept):
            for key in sorted(stored[name], key=lambda key: not key.endswith(STATE)):  # first it is not whole any more
                self._objects.delete(key)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _identity(version: Version) -> dict[str, str]:
    """What ties a state to its version."""
    return {"number": str(version.number), "update_id": version.update_id}
