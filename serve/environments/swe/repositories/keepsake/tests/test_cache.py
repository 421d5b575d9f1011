import pytest
from keepsake import Cache


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_was_set_is_found() -> None:
    cache = Cache()
    cache.set("a", 1)
    assert cache.get("a") == 1
    assert cache.get("b") is None
    assert cache.get("b", 7) == 7


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError):
        Cache(maxsize=0)


def test_old_entries_go() -> None:
    cache = Cache(maxsize=2)
    for number in range(10):
        cache.set(number, number)
    assert 0 not in cache
    assert cache.get(9) == 9


def test_entries_expire() -> None:
    clock = Clock()
    cache = Cache(ttl=10, clock=clock)
    cache.set("a", 1)
    clock.now += 9
    assert cache.get("a") == 1
    clock.now += 2
    assert cache.get("a") is None


def test_an_own_time_to_live() -> None:
    clock = Clock()
    cache = Cache(ttl=10, clock=clock)
    cache.set("a", 1, ttl=100)
    clock.now += 50
    assert "a" in cache


def test_touch_lengthens_a_life() -> None:
    clock = Clock()
    cache = Cache(ttl=10, clock=clock)
    cache.set("a", 1)
    assert cache.touch("a", 100)
    clock.now += 50
    assert cache.get("a") == 1


def test_delete() -> None:
    cache = Cache()
    cache.set("a", 1)
    assert cache.delete("a") and not cache.delete("a")


def test_statistics() -> None:
    cache = Cache()
    assert cache.statistics.ratio == 0.0
    cache.set("a", 1)
    cache.get("a")
    cache.get("b")
    assert cache.statistics.ratio == 0.5
