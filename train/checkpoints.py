"""The trainer's files: weight folders on this machine, and Adam's states here and in the object store.

What it does: fetches versions (hashes verified), publishes an exported folder by renaming it, clears what a crash left,
keeps the newest; saves Adam's state in a thread after each commit and finds the newest one that fits a head.
What it leaves out: committing (`storage/versions.py`), which versions the object store keeps (the driver prunes).

    <local_dir>/<model>/v000013/                 as committed; v000013.part while it is being made
    <local_dir>/<model>/optimizer/v000013.safetensors      and optimizer/<model>/v000013.safetensors in the store
"""

import logging
import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

from storage.objects import NotThere, ObjectStore, StoreDown
from storage.records import Version
from storage.versions import VersionStore
from train.megatron.engine import Engine

log = logging.getLogger(__name__)
PART = ".part"
OPTIMIZER_STATES_KEPT = 2


def _name(number: int) -> str:
    return f"v{number:06d}"


def _number(name: str) -> int | None:
    """13 of v000013 or v000013.safetensors, else None."""
    digits = name.partition(".")[0].removeprefix("v")
    return int(digits) if name.startswith("v") and digits.isdigit() and PART not in name else None


class WeightFolders:
    """One model's weight folders on this machine."""

    def __init__(self, versions: VersionStore, local_dir: Path) -> None:
        self.versions = versions
        self.root = local_dir / versions.model
        self.root.mkdir(parents=True, exist_ok=True)

    def fetch(self, number: int) -> Path:
        """The folder of a committed version: the copy here if it matches its hashes, else downloaded."""
        return self.versions.download(number, self.root / _name(number))

    def part(self, number: int) -> Path:
        """Where a version is made; whatever lay there is gone."""
        path = self.root / (_name(number) + PART)
        shutil.rmtree(path, ignore_errors=True)
        return path

    def publish(self, number: int) -> None:
        """The folder that was made becomes the version's, once it is committed."""
        path = self.root / _name(number)
        if path.exists():  # somebody on this machine was quick to download it
            shutil.rmtree(self.root / (_name(number) + PART))
        else:
            (self.root / (_name(number) + PART)).rename(path)

    def adopt(self, base: Path) -> Path:
        """A folder with the base model's files (linked where the disk allows), made for version 0."""
        part = self.part(0)
        part.mkdir()
        for path in sorted(base.iterdir()):
            if path.is_file():
                try:
                    os.link(path, part / path.name)
                except OSError:  # another disk, or one without links
                    shutil.copyfile(path, part / path.name)
        return part

    def tidy(self) -> None:
        """Remove what a crash left half made."""
        for path in self.root.glob(f"*{PART}"):
            shutil.rmtree(path, ignore_errors=True)

    def keep(self, numbers: Iterable[int]) -> None:
        """Remove the folders of all other versions."""
        kept = set(numbers)
        for path in self.root.iterdir():
            number = _number(path.name)
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

    def save(self, engine: Engine, version: Version) -> None:
        """Save in a thread. `wait_written` before the engine steps again: the state is not copied."""
        self.wait()
        self._written.clear()
        self._saving = threading.Thread(target=self._save, args=(engine, version), name="save-optimizer", daemon=True)
        self._saving.start()

    def wait_written(self) -> None:
        """Until the state is on this machine's disk (or could not be put there)."""
        self._written.wait()

    def wait(self) -> None:
        """Until it is in the object store too."""
        if self._saving is not None:
            self._saving.join()
            self._saving = None

    def load(self, engine: Engine, head: int) -> int | None:
        """Give the engine the newest state at or before the head in its line: that version's number, or None."""
        self.wait()
        line = self._versions.lineage(head)
        stored = [_number(key.removeprefix(self._prefix)) for key in self._objects.list(self._prefix)]
        here = [_number(path.name) for path in self._root.glob("v*")]
        for number in sorted({*stored, *here} & set(line), reverse=True):
            path = self._root / f"{_name(number)}.safetensors"
            try:
                if not path.exists():
                    self._download(number, path)
                engine.load_optimizer(path, _identity(self._versions.get(number)))
                return number
            except (ValueError, NotThere, OSError) as fault:  # torn, gone or another model's: an older one will do
                log.warning("optimiser state of version %s is left aside: %s", number, fault)
                path.unlink(missing_ok=True)
        engine.reset_optimizer()
        return None

    def _download(self, number: int, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + PART)
        self._objects.download_file(f"{self._prefix}{path.name}", part)
        part.replace(path)

    def _save(self, engine: Engine, version: Version) -> None:
        path = self._root / f"{_name(version.number)}.safetensors"
        try:
            saved = engine.save_optimizer(path, _identity(version))
            self._written.set()
            if saved:
                self._objects.upload_file(path, self._prefix + path.name)
                self._prune(version.number)
        except (OSError, StoreDown) as fault:  # boundary: the next version's state will do, its age is recorded
            log.warning("optimiser state of version %s was not saved: %s", version.number, fault)
        finally:
            self._written.set()

    def _prune(self, head: int) -> None:
        """Keep the newest two of the head's line, here and there."""
        line = set(self._versions.lineage(head))
        here = {path.name for path in self._root.glob("v*.safetensors")}
        stored = {key.removeprefix(self._prefix) for key in self._objects.list(self._prefix)}
        fit = sorted(name for name in here | stored if _number(name) in line)
        for name in (here | stored) - set(fit[-OPTIMIZER_STATES_KEPT:]):
            (self._root / name).unlink(missing_ok=True)
            self._objects.delete(self._prefix + name)
        for path in self._root.glob(f"*{PART}"):
            path.unlink(missing_ok=True)


def _identity(version: Version) -> dict[str, str]:
    """What ties a state to its version."""
    return {"number": str(version.number), "update_id": version.update_id}
