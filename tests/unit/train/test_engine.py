"""The Megatron engine against transformers and torch: scores, gradients, steps, files."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.unit.train.tiny import make_model, make_sample
from train.batch import Scored, TokenScores, hinted_sequence, plain_sequence
from train.megatron.engine import Engine
from train.megatron.layout import read_config
from train.megatron.weights import to_hf
from train.settings import OptimizerSettings

SEQUENCES = [plain_sequence(make_sample(seed)) for seed in range(5)]


@pytest.fixture(scope="module", params=["llama", "llama-untied", "qwen2", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, _, untied = request.param.partition("-")
    return make_model(tmp_path_factory.mktemp(request.param), family, tied=not untied)


@pytest.fixture
def engine(folder: Path) -> Engine:
    return Engine(folder, OptimizerSettings(learning_rate=1e-3))


def reference(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def by_transformers(model: torch.nn.Module, sequence: Scored) -> torch.Tensor:
    """[R] log-probs by a plain forward pass of one unpadded sequence."""
    ids = torch.tensor([[*sequence.prompt_ids, *sequence.response_ids]])
    logp = (model(ids).logits[0] / sequence.temperature).log_softmax(-1)
    start = len(sequence.prompt_ids)
    return torch.stack([logp[start + i - 1, token] for i, token in enumerate(sequence.response_ids)])


def nll(group: list[int], found: list[TokenScores]) -> tuple[torch.Tensor, int]:
    return sum((-each.logp.mean() for each in found), torch.zeros(())), len(group)


def gradients(engine: Engine) -> dict[str, torch.Tensor]:
    return {name: parameter.main_grad.clone() for name, parameter in engine.model.named_parameters()}


def test_every_position_agrees_with_transformers(folder: Path, engine: Engine) -> None:
    model = reference(folder)
    for temperature in (0.6, 1.0, 1.3):
        sequences = [
            Scored(prompt_ids=s.prompt_ids, response_ids=s.response_ids, temperature=temperature) for s in SEQUENCES
        ]
        for sequence, found in zip(sequences, engine.score(sequences, 64), strict=True):
            with torch.no_grad():
                assert torch.allclose(found, by_transformers(model, sequence), atol=2e-5)


def test_whole_distributions_agree_too(folder: Path, engine: Engine) -> None:
    [sequence] = SEQUENCES[:1]
    ids = torch.tensor([[*sequence.prompt_ids, *sequence.response_ids]])
    with torch.no_grad():
        logp = reference(folder)(ids).logits[0].log_softmax(-1)[len(sequence.prompt_ids) - 1 : -1]
    assert torch.allclose(engine.distributions(sequence), logp, atol=2e-5)


LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("rope", [{"rope_type": "linear", "factor": 3.0}, {"rope_type": "llama3", **LLAMA3}])
def test_scaled_rotary_embeddings_agree_with_transformers(tmp_path: Path, rope: dict[str, object]) -> None:
    folder = make_model(tmp_path / "scaled", rope_parameters={"rope_theta": 100.0, **rope})
    plain = make_model(tmp_path / "plain", rope_parameters={"rope_theta": 100.0, "rope_type": "default"})
    scaled, without = (Engine(each, OptimizerSettings()).score(SEQUENCES, 64) for each in (folder, plain))
    model = reference(folder)
    for sequence, found in zip(SEQUENCES, scaled, strict=True):
        with torch.no_grad():
            assert torch.allclose(found, by_transformers(model, sequence), atol=2e-5)
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(scaled, without, strict=True)), "the scaling does nothing"


@pytest.mark.parametrize("budget", [1, 40, 10_000])
def test_scores_do_not_depend_on_packing(engine: Engine, budget: int) -> None:
    alone = [engine.score([sequence], 1)[0] for sequence in SEQUENCES]
    for one, found in zip(alone[::-1], engine.score(SEQUENCES[::-1], budget), strict=True):
        assert torch.allclose(one, found, atol=1e-5)


def test_gradients_and_a_step_agree_with_autograd_and_adamw(folder: Path, engine: Engine) -> None:
    model = reference(folder)
    sum((-by_transformers(model, s).mean() for s in SEQUENCES), torch.zeros(())).div(len(SEQUENCES)).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    engine.accumulate(SEQUENCES, nll, 40)
    assert engine.grad_norm() == pytest.approx(float(norm), rel=1e-4)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), eps=1e-8).step()
    engine.step()
    expected = dict(model.named_parameters())
    for name, tensor in to_hf(engine.model):  # a norm that decays, or a wrong beta, would show at 1e-4
        assert torch.allclose(tensor, expected[name], atol=2e-5), name


@pytest.mark.parametrize("recompute_above", [0, 10_000])
def test_gradients_do_not_depend_on_packing_or_recompute(folder: Path, recompute_above: int) -> None:
    engine = Engine(folder, OptimizerSettings())
    engine.accumulate(SEQUENCES, nll, 10_000)
    whole = gradients(engine)
    split = Engine(folder, OptimizerSettings(recompute_above_tokens=recompute_above))
    split.accumulate(SEQUENCES[::-1], nll, 1)
    for name, gradient in gradients(split).items():
        assert torch.allclose(gradient, whole[name], atol=1e-5), name
        assert gradient.abs().max() > 0, name


def test_export_is_bit_exact_and_transformers_loads_it(folder: Path, engine: Engine, tmp_path: Path) -> None:
    engine.export(tmp_path / "out", folder)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode("hello") != []
    engine.accumulate(SEQUENCES, nll, 64)
    engine.step()
    engine.export(tmp_path / "stepped", folder)
    with torch.no_grad():
        [found] = engine.score(SEQUENCES[:1], 64)
        assert torch.allclose(found, by_transformers(reference(tmp_path / "stepped"), SEQUENCES[0]), atol=2e-5)


def stepped(engine: Engine) -> Engine:
    engine.accumulate(SEQUENCES, nll, 64)
    engine.step()
    engine.rest()
    return engine


@pytest.mark.parametrize("kind", [{}, {"distributed": True}, {"precision": "bf16"},
                                  {"precision": "bf16", "distributed": True}])  # fmt: skip
def test_an_optimiser_that_was_saved_steps_on_bit_for_bit(
    folder: Path, tmp_path: Path, kind: dict[str, object]
) -> None:
    identity = {"number": "1", "update_id": "u"}
    settings = OptimizerSettings(learning_rate=1e-3, **kind)
    engine = Engine(folder, settings)
    for name in ("none", "state"):
        (tmp_path / name).mkdir()
    assert not engine.save_state(tmp_path / "none", identity)
    assert stepped(engine).save_state(tmp_path / "state", identity)
    engine.export(tmp_path / "weights", folder)
    other = Engine(tmp_path / "weights", settings)
    other.load_state(tmp_path / "state", identity)
    for each in (engine, other):
        each.accumulate(SEQUENCES[1:], nll, 64)
        each.step()
    for one, two in zip(engine.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_bf16_keeps_what_its_weights_round_away(folder: Path) -> None:
    """At a rate below bf16's resolution the weights move only because Adam has them in fp32."""
    engine = Engine(folder, OptimizerSettings(learning_rate=1e-4, precision="bf16", weight_decay=0.0))
    start = [parameter.detach().clone() for parameter in engine.model.parameters()]
    moved = []
    for _ in range(12):
        stepped(engine)
        moved.append(sum(int((a != b).sum()) for a, b in zip(start, engine.model.parameters(), strict=True)))
    assert engine.model.embedding.word_embeddings.weight.dtype == torch.bfloat16
    assert moved[-1] > 2 * moved[0] > 0


def test_weights_that_are_taken_over_reach_adams_own(folder: Path, tmp_path: Path) -> None:
    for kind in ({"precision": "bf16"}, {"distributed": True}, {"precision": "bf16", "distributed": True}):
        engine = Engine(folder, OptimizerSettings(learning_rate=1e-3, weight_decay=0.0, **kind))
        fresh = Engine(folder, OptimizerSettings(learning_rate=1e-3, weight_decay=0.0, **kind))
        stepped(engine).load(folder)
        engine.reset_optimizer()
        for one, two in zip(stepped(engine).model.parameters(), stepped(fresh).model.parameters(), strict=True):
            assert torch.equal(one, two), kind


def test_a_torn_or_foreign_optimiser_state_is_refused(folder: Path, engine: Engine, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    stepped(engine).save_state(state, {"number": "1"})
    with pytest.raises(ValueError, match="wanted is"):
        engine.load_state(state, {"number": "2"})
    with pytest.raises(ValueError, match="wanted is"):
        Engine(folder, OptimizerSettings(distributed=True)).load_state(state, {"number": "1"})
    part = max(state.iterdir(), key=lambda path: path.stat().st_size)
    whole = part.read_bytes()
    for damaged in (whole[:-100], bytes(len(whole)), whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]):
        part.write_bytes(damaged)
        with pytest.raises(ValueError, match="not what was written: fetch it again"):
            engine.load_state(state, {"number": "1"})
    assert not engine.adam().state
    for garbage in ("{}", "null", "[]", "3", "{", '{"metadata": 1, "files": 2}'):
        (state / "state.json").write_text(garbage)
        with pytest.raises(ValueError, match="was not written to its end"):
            engine.load_state(state, {"number": "1"})


def test_adams_settings_are_those_that_are_asked_for_not_those_saved(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    stepped(Engine(folder, OptimizerSettings())).save_state(tmp_path / "state", {})
    engine = Engine(folder, OptimizerSettings(beta1=0.1, beta2=0.5, eps=1e-3))
    engine.load_state(tmp_path / "state", {})
    stepped(engine)
    assert all(group["betas"] == (0.1, 0.5) and group["eps"] == 1e-3 for group in engine.adam().param_groups)


def test_weights_that_are_said_twice_or_tied_in_vain_are_refused(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    save_file({"model.norm.weight": tensors["model.norm.weight"]}, folder / "z.safetensors")
    with pytest.raises(ValueError, match=r"model\.norm\.weight lies in model\.safetensors and in z\.safetensors"):
        Engine(folder, OptimizerSettings())
    (folder / "z.safetensors").unlink()
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file({**tensors, **head}, folder / "model.safetensors")
    Engine(folder, OptimizerSettings())
    save_file({**tensors, "lm_head.weight": head["lm_head.weight"] + 1}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="but they differ"):
        Engine(folder, OptimizerSettings())


def test_borrowed_weights_go_back(folder: Path, engine: Engine) -> None:
    start = engine.score(SEQUENCES, 64)
    engine.accumulate(SEQUENCES, nll, 64)
    engine.step()
    stepped = engine.score(SEQUENCES, 64)
    with engine.borrow(folder):
        borrowed = engine.score(SEQUENCES, 64)
    assert all(torch.equal(one, two) for one, two in zip(start, borrowed, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(stepped, engine.score(SEQUENCES, 64), strict=True))


def test_at_rest_gradients_hold_no_memory(engine: Engine) -> None:
    engine.accumulate(SEQUENCES, nll, 64)
    engine.rest()
    assert {parameter.main_grad.untyped_storage().size() for parameter in engine.model.parameters()} == {0}
    engine.accumulate(SEQUENCES, nll, 64)
    assert engine.grad_norm() > 0


def test_broken_weights_are_named(engine: Engine) -> None:
    assert engine.weight_fault() is None
    first = next(iter(engine.model.parameters()))
    first.data[0, 0] = float("nan")
    assert "is not finite" in engine.weight_fault()
    first.data.zero_()
    assert "is zero all over" in engine.weight_fault()


def test_the_teacher_scores_the_same_response_behind_the_hint(folder: Path, engine: Engine) -> None:
    sample = make_sample(2)
    sequence = hinted_sequence(sample)
    assert sequence.prompt_ids == sample.enhanced_prompt_ids and sequence.response_ids == sample.response_ids
    with torch.no_grad():
        [found] = engine.score([sequence], 64)
        assert torch.allclose(found, by_transformers(reference(folder), sequence), atol=2e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ('"model_type": "gpt2"', "model_type 'gpt2'"),
        ('"model_type": "llama", "attention_bias": true', "attention_bias"),
        ('"model_type": "llama", "rope_parameters": {"rope_type": "yarn"}', "rope type 'yarn'"),
        ('"model_type": "llama", "hidden_act": "gelu"', "hidden_act 'gelu'"),
        ('"model_type": "llama"', "not there, or no numbers: hidden_size, intermediate_size"),
        ('"model_type": "llama", "rope_scaling": {"rope_type": "linear"}', "rope's factor"),
        ('"model_type": "llama", "rope_scaling": {"factor": 2}, "rope_parameters": {"factor": 3}', "which differ"),
        ("", "model_type None"),
        ('"', "is not valid JSON"),
    ],
)
def test_what_is_not_mapped_is_refused_by_name(tmp_path: Path, change: str, named: str) -> None:
    (tmp_path / "config.json").write_text("{" + change + "}")
    with pytest.raises(ValueError, match=named):
        read_config(tmp_path)


def test_missing_unknown_and_misshapen_weights_are_refused(tmp_path: Path) -> None:

    folder = make_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.extra.weight": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"not mapped to Megatron, as model\.extra"):
        Engine(folder, OptimizerSettings())
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing, as model\.norm"):
        Engine(folder, OptimizerSettings())
    save_file({**tensors, "model.norm.weight": torch.ones(65)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.norm\.weight is \[65\], its config asks for \[64\]"):
        Engine(folder, OptimizerSettings())
    cut = (folder / "model.safetensors").read_bytes()[:-1000]
    (folder / "model.safetensors").write_bytes(cut)
    with pytest.raises(ValueError, match="it may be cut off"):
        Engine(folder, OptimizerSettings())


def test_weights_that_do_not_fit_change_nothing(folder: Path, engine: Engine, tmp_path: Path) -> None:
    before = [parameter.detach().clone() for parameter in engine.model.parameters()]
    engine.export(tmp_path / "bad", folder)
    tensors = load_file(tmp_path / "bad" / "model.safetensors")
    tensors = {name: tensor + 1 for name, tensor in tensors.items()}
    last = max(tensors)
    save_file({**tensors, last: tensors[last][:-1].contiguous()}, tmp_path / "bad" / "model.safetensors")
    with pytest.raises(ValueError, match=last):
        engine.load(tmp_path / "bad")
    assert all(torch.equal(a, b) for a, b in zip(before, engine.model.parameters(), strict=True))
