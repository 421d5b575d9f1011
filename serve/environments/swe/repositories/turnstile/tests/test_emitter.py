from turnstile import Emitter


def test_listeners_are_called_in_order() -> None:
    heard: list[str] = []
    emitter = Emitter()
    emitter.on("a", lambda: heard.append("first"))
    emitter.on("a", lambda: heard.append("second"))
    assert emitter.emit("a") == 2
    assert heard == ["first", "second"]


def test_arguments_are_passed_on() -> None:
    heard: list[tuple[int, int]] = []
    emitter = Emitter()
    emitter.on("a", lambda one, two: heard.append((one, two)))
    emitter.emit("a", 1, two=2)
    assert heard == [(1, 2)]


def test_nobody_listens() -> None:
    assert Emitter().emit("a") == 0


def test_removing() -> None:
    emitter = Emitter()
    remove = emitter.on("a", print)
    remove()
    assert emitter.count("a") == 0
    assert emitter.off("a", print) is False


def test_once() -> None:
    heard: list[int] = []
    emitter = Emitter()
    emitter.once("a", lambda: heard.append(1))
    emitter.emit("a")
    emitter.emit("a")
    assert heard == [1]
