"""The object store against a real S3: conditions, races, what is said when it is away, what survives its kill."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.services import free_port, start_s3, stop
from storage.objects import AlreadyThere, Changed, NotThere, ObjectStore, StoreDown, StoreSettings
from tests.contract.conftest import S3


def test_put_get_list_delete(objects: ObjectStore) -> None:
    assert objects.list() == []
    objects.put("a/1", b"one")
    objects.put("a/2", b"")
    objects.put("b", b"three")
    assert objects.get("a/1") == b"one"
    assert objects.list("a/") == ["a/1", "a/2"]
    assert objects.list(limit=2) == ["a/1", "a/2"]
    assert (objects.size("a/2"), objects.size("c"), objects.exists("b")) == (0, None, True)
    objects.delete("a/1")
    objects.delete("a/1")
    assert objects.list("a/") == ["a/2"]
    with pytest.raises(NotThere, match="reading a/1"):
        objects.get("a/1")


def test_more_than_a_page_of_keys(objects: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: objects.put(f"many/{number:04d}", b"x"), range(1050)))
    assert objects.list("many/") == [f"many/{number:04d}" for number in range(1050)]


def test_conditions(objects: ObjectStore) -> None:
    etag = objects.put("k", b"1", if_none_match=True)
    with pytest.raises(AlreadyThere, match="exists already"):
        objects.put("k", b"2", if_none_match=True)
    second = objects.put("k", b"2", if_match=etag)
    with pytest.raises(Changed):
        objects.put("k", b"3", if_match=etag)
    assert objects.get_with_etag("k") == (b"2", second)
    with pytest.raises(Changed):
        objects.put("absent", b"3", if_match=etag)


def test_race_has_one_winner(objects: ObjectStore) -> None:
    def attempt(number: int) -> bool:
        try:
            objects.put("raced", str(number).encode(), if_none_match=True)
        except AlreadyThere:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(attempt, range(16)))
    assert sum(won) == 1
    assert objects.get("raced") == str(won.index(True)).encode()


def test_files_in_parts(objects: ObjectStore, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(40 << 20))
    objects.upload_file(big, "files/big")
    objects.download_file("files/big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    with pytest.raises(NotThere):
        objects.download_file("files/none", tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        objects.upload_file(tmp_path / "absent", "files/absent")


def test_away_or_refusing_is_said(s3: S3) -> None:
    away = ObjectStore(
        f"s3://{s3.bucket}/x", endpoint=f"http://127.0.0.1:{free_port()}", access_key="a", secret_key="b"
    )
    began = time.monotonic()
    with pytest.raises(StoreDown, match=r"does not answer while reading k .*clawrl status"):
        away.get("k")
    assert time.monotonic() - began < 30
    wrong = StoreSettings(url=f"s3://{s3.bucket}/x", endpoint=s3.endpoint, access_key=s3.access_key, secret_key="no")
    assert "no'" not in repr(wrong)
    with pytest.raises(StoreDown, match="refuses writing k"):
        wrong.open().put("k", b"")
    with pytest.raises(ValueError, match="no address like s3://"):
        ObjectStore("/tmp/somewhere")


def test_kept_over_kill_and_restart_on_other_ports(tmp_path: Path) -> None:
    keys = {"bucket": "clawrl", "access_key": "ak", "secret_key": "sk"}

    def store(port: int) -> ObjectStore:
        return ObjectStore(
            "s3://clawrl/p", endpoint=f"http://127.0.0.1:{port}", access_key="ak", secret_key="sk", attempts=2
        )

    port = free_port()
    process = start_s3(tmp_path, port, **keys)
    before = store(port)
    etags = {f"k{number}": before.put(f"k{number}", os.urandom(2000)) for number in range(50)}
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (tmp_path / "s3" / "ports.json").unlink()  # as if they were taken
    port = free_port()
    process = start_s3(tmp_path, port, **keys)
    after = store(port)
    assert {key: after.get_with_etag(key)[1] for key in etags} == etags
    with pytest.raises(AlreadyThere):
        after.put("k1", b"", if_none_match=True)
    stop(process)
