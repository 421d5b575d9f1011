"""The audit: it finds what was done wrong on purpose, and nothing where all is well."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage import dataset
from storage.audit import AuditReport, audit
from storage.journal import JournalWriter
from storage.objects import ObjectStore
from storage.versions import VersionStore
from tests.contract.conftest import S3
from tests.unit.storage import builders
from tests.unit.storage.builders import MODEL

LONG_AGO = time.time() - 3600


class World:
    """A journal, a store, and turns put into them one way or another."""

    def __init__(self, root: Path, objects: ObjectStore) -> None:
        self.root, self.objects = root, objects
        self.versions = VersionStore(objects, MODEL)
        self.versions.commit(builders.version(0, None))

    def turn(self, version: int = 0, *, placed: bool = True, kind: str = "main", sampled: bool = True) -> str:
        """One turn; the id of its sample, or of the exchange where it has none."""
        one = builders.exchange(received_at=LONG_AGO, version=version)
        sample = builders.sample(one.exchange_id)
        with JournalWriter(self.root / "journal", MODEL, "w") as writer:
            writer.append("exchange", one, version)
            if placed:
                writer.append("turn", builders.turn(one.exchange_id, kind=kind), version)
            if sampled:
                writer.append("sample", sample, version)
        return sample.sample_id if sampled else one.exchange_id

    def journal(self, kind: str, record: object, version: int = 0) -> None:
        with JournalWriter(self.root / "journal", MODEL, "w") as writer:
            writer.append(kind, record, version)

    def commit(self, number: int, *sample_ids: str, parent: int | None = None, again: bool = False) -> None:
        before = number - 1 if parent is None else parent
        self.versions.commit(builders.version(number, before, sample_ids=sample_ids), again=again)

    def seal(self, version: int = 0) -> None:
        dataset.seal(self.root / "journal", MODEL, version, self.objects)

    def audit(self, **how: object) -> AuditReport:
        return audit(self.root / "journal", MODEL, self.objects, **how)


@pytest.fixture
def world(tmp_path: Path, objects: ObjectStore) -> World:
    return World(tmp_path, objects)


def test_nothing_wrong(world: World, s3: S3) -> None:
    trained, waiting = world.turn(0), world.turn(1)
    silent = world.turn(0, sampled=False)
    world.turn(0, kind="side", sampled=False)
    world.journal("disposition", builders.disposition(silent))
    world.commit(1, trained)
    for _ in range(2):
        report = world.audit()
        assert report.ok, report.table()
        assert (report.accepted, report.turns, report.main) == (4, 4, 3)
        assert (report.samples, report.trained, report.pending) == (2, 1, 1)
        assert report.reasons == {"no next state": 1}
        world.seal(0)
    [row] = [row for row in dataset.read_turns(world.root / "journal", MODEL, world.objects) if row["version"] == 1]
    assert world.audit(expected=[f"chatcmpl-{row['exchange_id']}"]).ok
    assert row["sample_id"] == waiting


def test_the_clients_own_words_are_looked_for(world: World) -> None:
    world.turn(0)
    [row] = dataset.read_turns(world.root / "journal", MODEL, world.objects)
    right, wrong = f"chatcmpl-{row['exchange_id']} hello – ünï", f"{row['exchange_id']} n1-7"
    for _ in range(2):
        assert not world.audit(expected=[right]).altered
        report = world.audit(expected=[wrong])
        assert report.altered == (row["exchange_id"],) and not report.ok and "altered" in report.table()
        world.seal(0)


def test_accepted_but_nowhere(world: World) -> None:
    world.turn()
    report = world.audit(expected=["chatcmpl-01GONE", "01GONE2 n1-7"])
    assert report.missing == ("01GONE", "01GONE2")
    assert not report.ok and "missing         2: 01GONE, 01GONE2" in report.table()


def test_sample_trained_twice(world: World) -> None:
    sample_id = world.turn()
    world.commit(1, sample_id)
    world.commit(2, sample_id, again=True)
    assert world.audit().trained_twice == (sample_id,)


def test_turn_trained_twice_by_two_samples(world: World) -> None:
    first = world.turn()
    row = dataset.read_turns(world.root / "journal", MODEL, None)[0]
    second = builders.sample(row["exchange_id"])  # made anew after a crash
    world.journal("sample", second)
    world.commit(1, first)
    world.commit(2, second.sample_id)
    assert world.audit().trained_twice == (row["exchange_id"],)


def test_lost_sample(world: World) -> None:
    sample_id = world.turn()
    assert world.audit().lost == ()  # in the journal: pending
    world.seal()
    report = world.audit()
    assert (report.lost, report.pending) == ((sample_id,), 0)
    [row] = dataset.read_turns(world.root / "journal", MODEL, world.objects)
    world.journal("disposition", builders.disposition(row["exchange_id"], sample_id=sample_id, reason="too old"))
    assert world.audit().ok


def test_sample_of_a_withdrawn_version(world: World) -> None:
    sample_id = world.turn()
    world.commit(1, sample_id)
    world.versions.withdraw(1, "probation")
    world.seal()
    report = world.audit()
    assert report.ok and report.withdrawn_only == (sample_id,)
    world.commit(2, sample_id, parent=0)
    report = world.audit()
    assert (report.trained, report.trained_twice, report.withdrawn_only) == (1, (), ())


def test_undecided(world: World) -> None:
    unplaced = world.turn(placed=False, sampled=False)
    assert world.audit(settle_s=7200).ok  # not old enough to say so
    assert world.audit().undecided == (unplaced,)
    unfinished = world.turn(1, sampled=False)
    assert world.audit().undecided == (unplaced,)  # its turn is still open
    world.seal(1)
    assert set(world.audit().undecided) == {unplaced, unfinished}


def test_notes(world: World) -> None:
    world.journal("turn", builders.turn("nowhere"))
    world.commit(1, "unknown-sample")
    folder = world.root / "journal" / MODEL / "v000000"
    (folder / "x.jsonl").write_text("not json\n")
    report = world.audit()
    assert report.ok
    assert (report.dangling, report.unknown, len(report.unreadable)) == (("nowhere",), ("unknown-sample",), 1)
    assert "(a note)" in report.table()


@pytest.mark.parametrize("wrong", [False, True])
def test_command(world: World, s3: S3, tmp_path: Path, wrong: bool) -> None:
    world.turn()
    expect = tmp_path / "expect"
    expect.write_text("01GONE\n" if wrong else "")
    command = [sys.executable, "-m", "storage.audit", "--home", str(tmp_path), "--model", MODEL]
    command += ["--store", world.objects.url(), "--endpoint", s3.endpoint, "--expect", str(expect)]
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | keys)
    assert done.returncode == int(wrong), done.stdout + done.stderr
    assert ("WRONG" if wrong else "nothing is wrong") in done.stdout
