"""One update's mathematics end to end on the tiny model, against autograd through transformers in the same formula."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from storage.records import Sample
from tests.unit.train.tiny import VOCAB, make_model, make_sample
from train.batch import Scored, Wanted, hinted_sequence, plain_sequence, select, step_rewards
from train.megatron.engine import Engine
from train.settings import AdvantageSettings, BatchSettings, LossSettings, OptimizerSettings, TrainSettings
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


# ---- options, each of which must change the step -----------------------------------------------------------------


def step_of(
    folder: Path, base: Path, settings: TrainSettings, samples: list[Sample]
) -> tuple[list[torch.Tensor], Learned]:
    engine = Engine(folder, OptimizerSettings(learning_rate=1e-3))
    learned = learn(engine, samples, base, settings, "u", lambda *_: None)
    assert learned.fault is None, learned
    return [parameter.detach().clone() for parameter in engine.model.parameters()], learned


PLAIN = TrainSettings(nice=0, batch=BatchSettings(full_batch=8, micro_batch_tokens=48), max_drift=9.0)
OPTIONS = {
    "entropy": replace(PLAIN, loss=LossSettings(entropy_weight=0.1)),
    "reverse distillation": replace(PLAIN, loss=LossSettings(distill_weight=1.0)),
    "forward distillation": replace(PLAIN, loss=LossSettings(distill_weight=1.0, distill_direction="forward")),
    "fewer bins": replace(PLAIN, loss=LossSettings(distill_weight=1.0, distill_top_k=3)),
    "k1": replace(PLAIN, loss=LossSettings(kl="k1")),
    "importance": replace(PLAIN, loss=LossSettings(max_importance=0.5)),
    "minibatches": replace(PLAIN, batch=replace(PLAIN.batch, minibatches=4)),
    "epochs": replace(PLAIN, batch=replace(PLAIN.batch, epochs=2)),
    "reward weight": replace(PLAIN, advantages=AdvantageSettings(reward_weight=0.3)),
    "gap clip": replace(PLAIN, advantages=AdvantageSettings(gap_clip=0.01)),
}


def test_every_option_changes_the_step(moved: Path, base: Path) -> None:
    samples = [make_sample(seed) for seed in range(8)]
    found = {name: step_of(moved, base, settings, samples)[0] for name, settings in {"plain": PLAIN, **OPTIONS}.items()}
    for name, weights in found.items():
        for other, others in found.items():
            same = all(torch.equal(one, two) for one, two in zip(weights, others, strict=True))
            assert same == (name == other), (name, other)


def test_minibatches_share_what_was_scored_first_and_the_clip_acts(moved: Path, base: Path) -> None:
    samples = [make_sample(seed) for seed in range(8)]
    batch = replace(PLAIN.batch, minibatches=4, epochs=3)
    engine = Engine(moved, OptimizerSettings(learning_rate=3e-2))
    before = engine.score([plain_sequence(sample) for sample in samples], 48)
    settings = replace(PLAIN, batch=batch, max_grad_norm=1e9)
    learned = learn(engine, samples, base, settings, "u", lambda *_: None)
    assert learned.fault is None and learned.steps == 12 and learned.metrics["clipped"] > 0
    for score, logp in zip(learned.scores, before, strict=True):
        assert torch.allclose(torch.tensor(score.logp_old), logp, atol=1e-6)
    _, single = step_of(moved, base, PLAIN, samples)
    assert single.steps == 1 and single.metrics["clipped"] == 0


def test_entropy_and_top_k_are_those_of_the_whole_distribution(moved: Path) -> None:
    engine, sequence = Engine(moved, OptimizerSettings()), plain_sequence(make_sample(2))  # at temperature 1
    assert sequence.temperature == 1.0
    logp_RV = engine.distributions(sequence)
    [found] = engine.score_more([sequence], Wanted(entropy=True, top=5), 64)
    assert torch.allclose(found.entropy, -(logp_RV.exp() * logp_RV).sum(-1), atol=1e-5)
    values, ids = logp_RV.topk(5, -1)
    assert torch.equal(found.top_ids, ids) and torch.allclose(found.top, values, atol=1e-5)
    picked = torch.tensor([[3, 300]]).expand(len(logp_RV), 2)
    [of] = engine.score_more([sequence], Wanted(of=[picked]), 64)
    assert torch.allclose(of.top, logp_RV.gather(-1, picked), atol=1e-5)
    assert torch.allclose(of.logp, engine.score([sequence], 64)[0], atol=1e-6)


def test_distillation_is_the_formula(moved: Path, base: Path) -> None:
    """Against autograd through transformers: reverse KL over the teacher's top 4 and the rest."""
    settings = replace(PLAIN, loss=LossSettings(distill_weight=1.0, distill_top_k=4),
                       advantages=AdvantageSettings(reward_weight=0.0, opd_weight=0.0))  # fmt: skip
    sample = make_sample(2, kl_weight=0.0)
    engine = Engine(moved, OptimizerSettings(clip_grad=1e9))
    learn(engine, [sample], base, settings, "u", lambda *_: None)
    student = AutoModelForCausalLM.from_pretrained(moved, dtype=torch.float32)

    def rows(sequence: Scored) -> torch.Tensor:
        ids = torch.tensor([[*sequence.prompt_ids, *sequence.response_ids]])
        return student(ids).logits[0].log_softmax(-1)[len(sequence.prompt_ids) - 1 : -1]

    with torch.no_grad():
        teacher, ids = rows(hinted_sequence(sample)).topk(4, -1)
    mine = rows(plain_sequence(sample)).gather(-1, ids)
    bins = [torch.cat([each, (1 - each.exp().sum(-1, keepdim=True)).log()], -1) for each in (mine, teacher)]
    (bins[0].exp() * (bins[0] - bins[1])).sum(-1).mean().div(8).backward()  # one sample of a full batch of eight
    expected = dict(student.named_parameters())
    parameters = dict(engine.model.named_parameters())
    hf = {
        "mlp.linear_fc2.weight": "mlp.down_proj.weight",
        "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    }
    for name in hf:
        hf = {
            "mlp.linear_fc2.weight": "mlp.down_proj.weight",
            "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
        }
        found = parameters[f"decoder.layers.1.{name}"].main_grad
        assert torch.allclose(found, expected[f"model.layers.1.{hf[name]}"].grad, atol=1e-6), name
        assert found.abs().max() > 1e-5


def test_supervised_fine_tuning_is_the_mean_likelihood(moved: Path, base: Path) -> None:
    samples = [make_sample(seed, reward=1.0, kl_weight=0.0, temperature=1.0) for seed in range(8)]
    weights, learned = step_of(moved, base, replace(PLAIN, loss=LossSettings(objective="sft")), samples)
    engine = Engine(moved, OptimizerSettings(learning_rate=1e-3))
    sequences = [plain_sequence(sample) for sample in samples]
    scores = engine.score(sequences, 48)
    assert learned.metrics["loss"] == pytest.approx(float(-sum(logp.mean() for logp in scores) / 8), rel=1e-5)
    assert learned.metrics["hints"] == 0 and set(learned.scores[0].weight) == {1.0}
    engine.accumulate(sequences, lambda group, found: (-sum(each.logp.mean() for each in found), len(group)), 48)
    engine.step()
    for one, two in zip(weights, engine.model.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_supervised_fine_tuning_takes_good_answers_only() -> None:
    samples = [make_sample(seed) for seed in range(8)]
    kept, left_out = select(samples, head=0, lineage={0}, consumed=(), vocab_size=VOCAB, settings=PLAIN.batch,
                            objective="sft")  # fmt: skip
    assert {sample.reward for sample in kept} == {1.0}
    assert all(reason.startswith("not good: its reward is -1.0") for reason in left_out.values()) and left_out


def test_steps_of_a_group_are_standardised_over_their_index() -> None:
    """Step 0: rewards 3, 1, -1, of mean 1 and deviation sqrt(8/3). Step 1: no spread. Step 2: one alone."""

    def step(seed: int, index: int, reward: float) -> Sample:
        return make_sample(seed, sample_id=f"{seed}", group_id="g", step_index=index, reward=reward, hint=None,
                           enhanced_prompt_ids=None)  # fmt: skip

    group = [step(0, 0, 3.0), step(1, 0, 1.0), step(2, 0, -1.0), step(3, 1, 0.5), step(4, 1, 0.5), step(5, 2, 1.0)]
    kept, left_out = select(group, head=0, lineage={0}, consumed=(), vocab_size=VOCAB, settings=PLAIN.batch)
    assert [sample.sample_id for sample in kept] == ["0", "1", "2"]
    assert left_out.keys() == {"3", "4", "5"} and all(reason.startswith("no spread") for reason in left_out.values())
    spread = (8 / 3) ** 0.5
    assert step_rewards(kept) == pytest.approx([2 / spread, 0.0, -2 / spread])


def test_minibatches_keep_their_guards(moved: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [make_sample(seed) for seed in range(8)]
    settings = replace(PLAIN, batch=replace(PLAIN.batch, minibatches=4))
    for norms, named, steps in (([1.0, float("nan")], "not finite", 1), ([1.0, 2.0, 1e9], "exploding norm", 2)):
        engine, left = Engine(moved, OptimizerSettings()), list(norms)
        monkeypatch.setattr(engine, "grad_norm", lambda left=left: left.pop(0))
        learned = learn(engine, samples, base, settings, "u", lambda *_: None)
        assert learned.fault.startswith(named) and learned.steps == steps
    learned = learn(Engine(moved, OptimizerSettings()), samples, base, replace(settings, max_drift=1e-9), "u",
                    lambda *_: None)  # fmt: skip
    assert learned.fault.startswith("drift") and learned.steps == 0


def test_a_batch_that_teaches_nothing_is_no_step(moved: Path, base: Path) -> None:
    samples = [make_sample(seed, hint=None, enhanced_prompt_ids=None, kl_weight=0.0) for seed in range(8)]
    settings = replace(PLAIN, advantages=AdvantageSettings(reward_weight=0.0))
    for batch in (settings.batch, replace(settings.batch, minibatches=4)):
        engine = Engine(moved, OptimizerSettings())
        learned = learn(engine, samples, base, replace(settings, batch=batch), "u", lambda *_: None)
        assert learned.steps == 0 and learned.fault.startswith("nothing to learn")
