"""One update's mathematics end to end on the tiny model, against autograd through transformers in the same formula."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.unit.train.tiny import make_model, make_sample
from train.batch import Scored, hinted_sequence, plain_sequence
from train.megatron.engine import Engine
from train.settings import BatchSettings, OptimizerSettings, TrainSettings
from train.update import Learned, learn

SETTINGS = TrainSettings(nice=0, batch=BatchSettings(full_batch=8, micro_batch_tokens=48), max_drift=9.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def moved(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base after a step, so that the reference differs."""
    engine = Engine(base, OptimizerSettings(learning_rate=5e-3))
    learn(engine, [make_sample(seed) for seed in range(8)], base, SETTINGS, "u0", lambda *_: None)
    folder = tmp_path_factory.mktemp("moved") / "weights"
    engine.export(folder, base)
    return folder


def run(folder: Path, base: Path, seeds: list[int], **batch: int) -> tuple[Engine, Learned]:
    settings = TrainSettings(nice=0, batch=BatchSettings(full_batch=8, **batch), max_drift=9.0)
    engine = Engine(folder, OptimizerSettings(clip_grad=1e9))  # clipping would scale the gradients that are compared
    return engine, learn(engine, [make_sample(s) for s in seeds], base, settings, "u", lambda *_: None)


def scored(model: torch.nn.Module, sequence: Scored) -> torch.Tensor:
    ids = torch.tensor([[*sequence.prompt_ids, *sequence.response_ids]])
    logp = (model(ids).logits[0] / sequence.temperature).log_softmax(-1)[len(sequence.prompt_ids) - 1 : -1]
    return logp.gather(-1, torch.tensor(sequence.response_ids)[:, None])[:, 0]


def test_loss_and_gradients_are_the_formula(moved: Path, base: Path) -> None:
    seeds = list(range(8))
    engine, learned = run(moved, base, seeds, micro_batch_tokens=48)
    student = AutoModelForCausalLM.from_pretrained(moved, dtype=torch.float32)
    start = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    losses = []
    for sample in map(make_sample, seeds):
        ell = scored(student, plain_sequence(sample))
        old = ell.detach()
        with torch.no_grad():
            ref = scored(start, plain_sequence(sample))
            advantage = torch.full_like(old, sample.reward)
            if sample.hint:
                advantage += (scored(student, hinted_sequence(sample)) - old).clamp(-2, 2)
        weight = (old - torch.tensor(sample.rollout_logprobs)).exp().clamp(max=2)
        k3 = (ref - ell).exp() - (ref - ell) - 1
        losses.append((-weight * (ell - old).exp() * advantage + 0.05 * k3).mean())
    loss = torch.stack(losses).mean()
    loss.backward()
    assert learned.fault is None
    assert learned.metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert learned.metrics["kl_ref"] > 1e-4
    embedding = dict(engine.model.named_parameters())["embedding.word_embeddings.weight"].main_grad
    assert torch.allclose(embedding, student.get_input_embeddings().weight.grad, atol=1e-5)


def test_gradients_do_not_depend_on_order_or_packing(moved: Path, base: Path) -> None:
    one, _ = run(moved, base, list(range(8)), micro_batch_tokens=10_000)
    two, _ = run(moved, base, list(range(8))[::-1], micro_batch_tokens=2)
    for (name, first), (_, second) in zip(one.model.named_parameters(), two.model.named_parameters(), strict=True):
        assert torch.allclose(first.main_grad, second.main_grad, atol=1e-5), name


def test_a_smaller_batch_pulls_less(moved: Path, base: Path) -> None:
    four, _ = run(moved, base, [0, 1, 2, 3])
    twice, _ = run(moved, base, [0, 1, 2, 3, 0, 1, 2, 3])
    assert four.grad_norm() == pytest.approx(twice.grad_norm() / 2, rel=1e-4)


def test_scores_are_complete_and_in_order(moved: Path, base: Path) -> None:
    _, learned = run(moved, base, [3, 2, 1, 0], micro_batch_tokens=10)
    for seed, score in zip([3, 2, 1, 0], learned.scores, strict=True):
        sample = make_sample(seed)
        assert score.sample_id.startswith(f"s{seed:04d}")
        assert len(score.logp_old) == len(score.advantage) == len(score.weight) == len(sample.response_ids)
        assert (score.logp_teacher is None) == (sample.hint is None)
        assert score.logp_ref is not None and max(score.weight) <= 2.0


def test_the_reference_is_not_scored_without_beta(base: Path) -> None:
    phases = []
    samples = [make_sample(seed, kl_weight=0.0) for seed in range(4)]
    engine = Engine(base, OptimizerSettings())
    learned = learn(engine, samples, Path("/nowhere"), SETTINGS, "u", lambda phase, *_: phases.append(phase))
    assert learned.fault is None and "reference" not in phases and learned.scores[0].logp_ref is None


def test_bad_gradients_have_a_named_fault(base: Path) -> None:
    engine = Engine(base, OptimizerSettings())
    samples = [make_sample(seed) for seed in range(4)]

    def fault(settings: TrainSettings) -> str:
        return learn(engine, samples, base, settings, "u", lambda *_: None).fault or ""

    assert fault(SETTINGS) == ""
    assert fault(TrainSettings(max_grad_norm=1e-6)).startswith("exploding norm")
    assert fault(TrainSettings(max_drift=1e-6)).startswith("drift")
    next(iter(engine.model.parameters())).data[0, 0] = float("nan")
    assert fault(SETTINGS).startswith("not finite")
