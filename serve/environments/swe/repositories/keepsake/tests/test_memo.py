from keepsake import Cache, memoize


def test_a_function_is_called_once() -> None:
    calls = []

    @memoize()
    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    assert double(2) == double(2) == 4
    assert calls == [2]


def test_keywords_in_any_order() -> None:
    calls = []

    @memoize()
    def pair(a: int, b: int) -> tuple[int, int]:
        calls.append((a, b))
        return a, b

    pair(a=1, b=2)
    pair(b=2, a=1)
    assert len(calls) == 1


def test_a_given_cache_is_used() -> None:
    cache = Cache()

    @memoize(cache=cache)
    def one() -> int:
        return 1

    one()
    assert len(cache) == 1
    assert one.cache is cache
