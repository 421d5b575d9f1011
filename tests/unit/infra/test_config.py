"""Settings: TOML and environment into frozen dataclasses; what nobody would read is refused."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from infra.config import load
from infra.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Inner:
    batch_size: int = 16
    names: tuple[str, ...] = ()
    kind: Literal["rules", "llm"] = "rules"


@dataclass(frozen=True, kw_only=True)
class Outer:
    live: Inner = field(default_factory=Inner)
    folder: Path | None = None
    keys: dict[str, str] = field(default_factory=dict)
    on: bool = True


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_defaults_without_a_file(tmp_path: Path) -> None:
    assert load(Outer, tmp_path / "none.toml", {}) == Outer()


def test_file_and_environment_over_it(tmp_path: Path) -> None:
    path = write(tmp_path, 'folder = "/x"\non = false\n[live]\nbatch_size = 4\nnames = ["a", "b"]\n[keys]\nk = "t"\n')
    made = load(Outer, path, {"CLAWRL_LIVE__BATCH_SIZE": "8", "CLAWRL_HOME": "/elsewhere", "OTHER": "1"})
    assert made == Outer(live=Inner(batch_size=8, names=("a", "b")), folder=Path("/x"), on=False, keys={"k": "t"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[live]\nbatchsize = 4\n", ["live.batchsize", "did you mean 'batch_size'"]),
        ("nonsense = 1\n", ["unknown setting 'nonsense'", "known here"]),
        ('[live]\nbatch_size = "many"\n', ["live.batch_size", "'many'", "int"]),
        ("[live]\nbatch_size = 1.5\n", ["live.batch_size", "1.5"]),
        ('[live]\nkind = "magic"\n', ["live.kind", "'rules', 'llm'"]),
        ("live = 3\n", ["[live] must be a table"]),
        ("on = 7\n", ["on = 7", "bool"]),
        ("live = [\n", ["not valid TOML"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as fault:
        load(Outer, write(tmp_path, text), {})
    for word in words:
        assert word in str(fault.value)


def test_environment_that_names_no_setting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"live\.batch_sise"):
        load(Outer, tmp_path / "none.toml", {"CLAWRL_LIVE__BATCH_SISE": "8"})


def test_what_is_said_once_is_refused_where_it_would_do_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.batch\.full_batch is 4: it follows pool\.batch_size here"):
        load(Settings, write(tmp_path, "[train.batch]\nfull_batch = 4\n"), {})
    made = load(Settings, write(tmp_path, "[pool]\nbatch_size = 4\n[samples]\nmax_train_tokens = 99\n"), {})
    assert (made.trainer().batch.full_batch, made.trainer().batch.max_train_tokens) == (4, 99)


def test_keys_in_the_environment_are_no_settings(tmp_path: Path) -> None:
    environ = {"CLAWRL_JUDGE_API_KEY": "sk-1", "CLAWRL_API_KEY": "sk-2", "CLAWRL_HOME": "/x"}
    assert load(Settings, tmp_path / "none.toml", environ) == Settings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gateway_port = 70000", "server.gateway_port is 70000: ports are from 1 to 65535"),
        ("s3_port = -1", "server.s3_port is -1"),
        ("s3_port = 8700", "server.s3_port and server.gateway_port are both 8700"),
    ],
)
def test_ports_that_cannot_be(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load(Settings, write(tmp_path, f"[server]\n{text}\n"), {})
    assert load(Settings, write(tmp_path, "[server]\ngateway_port = 0\ns3_port = 0\n"), {})


def test_settings_that_are_no_text_name_their_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"config\.toml: not valid TOML"):
        load(Settings, tmp_path / "config.toml", {})
