"""LoRA in Megatron against PEFT and transformers: scores, gradients, files, merging, on one rank and on two."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.unit.train.lora_model import (
    SEQUENCES,
    adapted_model,
    base_weights,
    checkpoint,
    megatron_gradients,
    nll,
    score,
    train,
)
from tests.unit.train.tiny import make_model
from train import lora_merge
from train.batch import Scored, collate
from train.megatron import cpu, lora
from train.settings import LoraSettings

ALL = LoraSettings(rank=4, alpha=8.0)
SOME = LoraSettings(rank=3, alpha=4.5, targets=("v_proj", "q_proj", "up_proj"))
ROOT = Path(__file__).resolve().parents[3]


def by_transformers(model: torch.nn.Module, sequence: Scored) -> Tensor:
    """[R] log-probs by a plain forward pass of one unpadded sequence."""
    ids = torch.tensor([[*sequence.prompt_ids, *sequence.response_ids]])
    logp = (model(ids).logits[0] / sequence.temperature).log_softmax(-1)
    start = len(sequence.prompt_ids)
    return torch.stack([logp[start + i - 1, token] for i, token in enumerate(sequence.response_ids)])


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def peft_model(base: Path, adapter: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    model = PeftModel.from_pretrained(transformers_model(base, dtype), adapter, is_trainable=True)
    return model.to(dtype).eval()


class Trained:
    """A model whose adapter was trained a little, and the folders of its base and its adapter."""

    def __init__(self, folder: Path, settings: LoraSettings, out: Path) -> None:
        self.base, self.settings, self.adapter = folder, settings, out / "adapter"
        self.model = adapted_model(folder, settings)
        train(self.model, SEQUENCES)
        lora.export_adapter(self.model, self.adapter, folder)


CASES = {"llama": ALL, "llama-untied": ALL, "qwen2": ALL, "qwen3": ALL, "qwen2-untied-some": SOME}


@pytest.fixture(scope="module", params=CASES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    family, *words = request.param.split("-")
    out = tmp_path_factory.mktemp(request.param)
    return Trained(make_model(out / "base", family, tied="untied" not in words), CASES[request.param], out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base") / "llama")


# ---- the maths -------------------------------------------------------------------------------------------------------


def test_scores_agree_with_peft(trained: Trained) -> None:
    peft = peft_model(trained.base, trained.adapter)
    plain = transformers_model(trained.base)
    with torch.no_grad():
        for sequence, found in zip(SEQUENCES, score(trained.model, SEQUENCES), strict=True):
            assert torch.allclose(found, by_transformers(peft, sequence), atol=1e-5)
            assert (found - by_transformers(plain, sequence)).abs().max() > 1e-2, "the adapter does nothing"


def test_without_its_adapters_it_is_the_base(trained: Trained) -> None:
    plain = transformers_model(trained.base)
    with torch.no_grad():
        before = score(trained.model, SEQUENCES)
        with lora.base_only(trained.model):
            for sequence, found in zip(SEQUENCES, score(trained.model, SEQUENCES), strict=True):
                assert torch.allclose(found, by_transformers(plain, sequence), atol=1e-5)
        assert all(map(torch.equal, before, score(trained.model, SEQUENCES)))


def test_a_fresh_adapter_changes_nothing_and_is_the_seeds(folder: Path) -> None:
    model = adapted_model(folder, ALL)
    plain = transformers_model(folder)
    with torch.no_grad():
        for sequence, found in zip(SEQUENCES, score(model, SEQUENCES), strict=True):
            assert torch.allclose(found, by_transformers(plain, sequence), atol=1e-5)
    first = lora.gather(model)
    lora.reset(model, seed=1)
    second = lora.gather(model)
    lora.reset(model, seed=0)
    assert all(torch.equal(lora.gather(model)[name], tensor) for name, tensor in first.items())
    names = [name for name in first if name.endswith("lora_a")]
    assert not any(torch.equal(first[name], second[name]) for name in names)
    assert len({float(first[name].sum()) for name in names}) == len(names), "each linear has a start of its own"
    bound = 1 / 8  # 1/√64 inputs
    drawn = first["decoder.layers.0.self_attention.linear_qkv.lora_a"]
    assert 0.9 * bound < drawn.abs().max() <= bound


def peft_gradients(trained: Trained) -> dict[str, Tensor]:
    peft = peft_model(trained.base, trained.adapter)
    nll([by_transformers(peft, sequence) for sequence in SEQUENCES]).backward()
    return {
        name.replace(".default", ""): parameter.grad
        for name, parameter in peft.named_parameters()
        if parameter.grad is not None
    }


def test_gradients_agree_with_peft(trained: Trained) -> None:
    model = trained.model
    nll(score(model, SEQUENCES)).backward()
    own = lora.named_adapters(model)
    found = lora.gather(model, {name: parameter.grad for name, parameter in own.items()})
    model.zero_grad()
    expected = peft_gradients(trained)
    names = dict(lora.peft_tensors(lora.gather(model), model.config, trained.settings)).keys()
    assert names == expected.keys()
    for name, gradient in found.items():
        peft_names = [each for each, _ in lora.peft_tensors({name: own[name]}, model.config, trained.settings)]
        if name.endswith("lora_a"):  # the parts share it
            assert torch.allclose(gradient, sum(expected[each] for each in peft_names), atol=1e-5), name
        else:
            for each, part in lora.peft_tensors({name: gradient}, model.config, trained.settings):
                assert torch.allclose(part, expected[each], atol=1e-5), each


def test_only_the_adapters_train(folder: Path) -> None:
    model = adapted_model(folder, ALL)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(model, SEQUENCES, steps=2)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) != lora.is_adapter(name), name
        assert parameter.requires_grad == lora.is_adapter(name)


def test_what_is_not_named_gets_no_adapter(folder: Path) -> None:
    names = [name for name, _ in adapted_model(folder, SOME).named_parameters() if ".layers.0." in name]
    adapters = [name.removeprefix("decoder.layers.0.") for name in names if lora.is_adapter(name)]
    assert adapters == [f"{at}.{half}" for at in ("self_attention.linear_qkv", "mlp.linear_fc1") for half in
                        ("lora_a", "lora_b")]  # fmt: skip
    plain = dict(base_weights(folder))
    assert {name for name, _ in adapted_model(folder, ALL).named_parameters() if not lora.is_adapter(name)} == set(
        plain
    )


def test_bfloat16_stays_bfloat16(folder: Path, tmp_path: Path) -> None:
    model = adapted_model(folder, ALL, torch.bfloat16)
    for name, parameter in lora.named_adapters(model).items():
        if name.endswith("lora_b"):
            parameter.data.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    with cpu.device_mode():
        logits_NV = model(collate(SEQUENCES[:1]), logits=True)
    logits_NV.logsumexp(-1).sum().backward()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16} == {logits_NV.dtype}
    assert all(parameter.grad.abs().max() > 0 for parameter in lora.named_adapters(model).values())
    lora.export_adapter(model, tmp_path / "adapter", folder)
    [sequence] = SEQUENCES[:1]
    ids = torch.tensor([[*sequence.prompt_ids, *sequence.response_ids]])
    with torch.no_grad():
        expected_SV = peft_model(folder, tmp_path / "adapter", torch.bfloat16)(ids).logits[0]
    expected_NV = expected_SV[len(sequence.prompt_ids) - 1 : -1].float()
    assert (logits_NV.float() - expected_NV).abs().max() < 0.05 * expected_NV.abs().max()


def test_recomputed_layers_train_too(folder: Path) -> None:
    found = []
    for recompute in (None, "full"):
        model = adapted_model(folder, ALL)
        train(model, SEQUENCES, steps=1)  # else B is zero, and so are the gradients of A
        model.config.recompute_granularity = recompute
        model.config.recompute_method, model.config.recompute_num_layers = "uniform", 1
        model.train()
        nll(score(model, SEQUENCES)).backward()
        found.append({name: parameter.grad for name, parameter in lora.named_adapters(model).items()})
    assert all(torch.allclose(found[0][name], gradient, atol=1e-6) for name, gradient in found[1].items())


# ---- files -----------------------------------------------------------------------------------------------------------


def test_an_adapter_comes_back_bit_for_bit(trained: Trained) -> None:
    model = adapted_model(trained.base, trained.settings)
    lora.load_adapter(model, trained.adapter)
    expected = lora.gather(trained.model)
    assert expected.keys() == lora.shapes(model.config, trained.settings).keys()
    for name, tensor in lora.gather(model).items():
        assert torch.equal(tensor, expected[name]), name
        assert tuple(tensor.shape) == lora.shapes(model.config, trained.settings)[name]
    again = dict(lora.to_peft(model))
    files = load_file(trained.adapter / lora_merge.WEIGHTS)
    assert again.keys() == files.keys() and all(torch.equal(again[name], files[name]) for name in files)


def spoiled_config(**changes: object) -> Callable[[Path], None]:
    def spoil(adapter: Path) -> None:
        path = adapter / lora_merge.CONFIG
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return spoil


def spoiled_tensors(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def spoil(adapter: Path) -> None:
        tensors = load_file(adapter / lora_merge.WEIGHTS)
        change(tensors)
        save_file(tensors, adapter / lora_merge.WEIGHTS)

    return spoil


Q = "base_model.model.model.layers.1.self_attn.q_proj"
REFUSED = {
    "r is 8, the settings say 4": spoiled_config(r=8),
    "lora_alpha is 1, the settings say 8": spoiled_config(lora_alpha=1),
    "target_modules is .'q_proj'.": spoiled_config(target_modules=["q_proj"]),
    "target_modules is 'all-linear'": spoiled_config(target_modules="all-linear"),
    "use_dora.*only plain LoRA": spoiled_config(use_dora=True),
    "rank_pattern.*only plain LoRA": spoiled_config(rank_pattern={"q_proj": 2}),
    "init_lora_weights': 'pissa'": spoiled_config(init_lora_weights="pissa"),
    "a_new_idea.*only plain LoRA": spoiled_config(a_new_idea={"on": True}),
    "peft_type is 'LOHA'": spoiled_config(peft_type="LOHA"),
    "r is 0": spoiled_config(r=0),
    "has no adapter_config.json": lambda adapter: (adapter / lora_merge.CONFIG).unlink(),
    "can't be read": lambda adapter: (adapter / lora_merge.WEIGHTS).write_bytes(b"torn"),
    f"1 tensors are missing, as {Q}.lora_A": spoiled_tensors(lambda tensors: tensors.pop(f"{Q}.lora_A.weight")),
    "1 tensors are not of this model's adapter, as lm_head": spoiled_tensors(
        lambda tensors: tensors.update({"lm_head.lora_A.weight": torch.zeros(1)})
    ),
    r"q_proj.lora_B.weight is \(3, 4\), this model needs \(64, 4\)": spoiled_tensors(
        lambda tensors: tensors.update({f"{Q}.lora_B.weight": torch.zeros(3, 4)})
    ),
    "q_proj.* and .*k_proj.* differ": spoiled_tensors(lambda tensors: tensors[f"{Q}.lora_A.weight"].mul_(2)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_an_adapter_of_something_else_is_refused(folder: Path, tmp_path: Path, words: str) -> None:
    model = adapted_model(folder, ALL)
    lora.export_adapter(model, tmp_path / "adapter", folder)
    REFUSED[words](tmp_path / "adapter")
    before = lora.gather(model)
    with pytest.raises(ValueError, match=words):
        lora.load_adapter(model, tmp_path / "adapter")
    assert all(torch.equal(before[name], tensor) for name, tensor in lora.gather(model).items())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank": 0}, "lora.rank is 0"),
        ({"rank": 2.5}, "lora.rank is 2.5"),
        ({"alpha": 0.0}, "lora.alpha is 0.0"),
        ({"alpha": float("nan")}, "lora.alpha is nan"),
        ({"targets": ()}, "lora.targets is ()"),
        ({"targets": "q_proj"}, "lora.targets is 'q_proj'"),
        ({"targets": ("q_proj", "q_proj")}, "different names"),
        ({"targets": ("q_proj", "lm_head")}, "lora.targets has ['lm_head']: known are q_proj, k_proj"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        LoraSettings(**fields)
    assert words in str(caught.value)


# ---- merging ---------------------------------------------------------------------------------------------------------


def test_merged_weights_are_base_and_adapter(trained: Trained, tmp_path: Path) -> None:
    lora_merge.merge(trained.base, trained.adapter, tmp_path / "merged")
    wide = torch.float64  # else the sums' own rounding is as large as what is looked for
    peft, merged = peft_model(trained.base, trained.adapter, wide), transformers_model(tmp_path / "merged", wide)
    with torch.no_grad():
        for each in SEQUENCES:
            assert torch.allclose(by_transformers(peft, each), by_transformers(merged, each), rtol=0, atol=1e-6)
    expected = peft.merge_and_unload().state_dict()
    found = load_file(tmp_path / "merged" / "model.safetensors")
    assert found.keys() == load_file(trained.base / "model.safetensors").keys()
    assert all(torch.allclose(tensor, expected[name].float(), atol=1e-7) for name, tensor in found.items())
    assert {path.name for path in (tmp_path / "merged").iterdir()} == {path.name for path in trained.base.iterdir()}


def test_merging_keeps_dtype_and_several_files(folder: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(base, max_shard_size="100KB")
    assert len(list(base.glob("*.safetensors"))) > 1
    model = adapted_model(folder, ALL)
    train(model, SEQUENCES, steps=1)
    lora.export_adapter(model, tmp_path / "adapter", folder)
    lora_merge.merge(base, tmp_path / "adapter", tmp_path / "out")
    adapter = load_file(tmp_path / "adapter" / lora_merge.WEIGHTS)
    for path in base.glob("*.safetensors"):
        before, after = load_file(path), load_file(tmp_path / "out" / path.name)
        for name, tensor in before.items():
            stem = lora_merge.PREFIX + name.removesuffix(".weight")
            if f"{stem}.lora_A.weight" in adapter:
                delta = ALL.scale * adapter[f"{stem}.lora_B.weight"] @ adapter[f"{stem}.lora_A.weight"]
                tensor = (tensor.float() + delta).to(torch.bfloat16)
            assert torch.equal(after[name], tensor), name
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


def test_merging_refuses_the_adapter_of_another_model(folder: Path, tmp_path: Path) -> None:
    model = adapted_model(folder, ALL)
    lora.export_adapter(model, tmp_path / "adapter", folder)
    other = tmp_path / "other"
    tensors = load_file(folder / "model.safetensors")
    other.mkdir()
    for change, words in (
        (lambda: tensors.update({"model.layers.0.mlp.up_proj.weight": torch.zeros(96, 64)}), r"is \[96, 64\]"),
        (lambda: tensors.pop("model.layers.0.mlp.up_proj.weight"), "adapts model.layers.0.mlp.up_proj.weight, which"),
    ):
        change()
        save_file(tensors, other / "model.safetensors")
        with pytest.raises(ValueError, match=words):
            lora_merge.merge(other, tmp_path / "adapter", tmp_path / "out")
    spoiled_tensors(lambda found: found.pop(f"{Q}.lora_B.weight"))(tmp_path / "adapter")
    with pytest.raises(ValueError, match=rf"1 tensors are missing .*as {Q}.lora_B"):
        lora_merge.merge(folder, tmp_path / "adapter", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- Megatron's own machinery, on one rank and on two ----------------------------------------------------------------


def two_ranks(base: Path, settings: LoraSettings, adapter: Path, out: Path, tensor: int) -> None:
    """Run `lora_rank.py` on two ranks of loopback; what they found lies in `out`."""
    out.mkdir()
    save_file(base_weights(base), out / "base.safetensors")
    job = {"folder": str(base), "adapter": str(adapter), "out": str(out), "tensor": tensor, **asdict(settings)}
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.unit.train.lora_rank", json.dumps(job)]
    options = {"cwd": ROOT, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ranks = [subprocess.Popen([*command, str(rank)], **options) for rank in range(2)]
    try:
        for rank in ranks:
            words, _ = rank.communicate(timeout=300)
            assert rank.returncode == 0, words[-3000:]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize(("family", "settings"), [("qwen2", ALL), ("qwen3", SOME)])
def test_two_tensor_parallel_ranks_are_one(tmp_path: Path, family: str, settings: LoraSettings) -> None:
    from megatron.core import dist_checkpointing

    trained = Trained(make_model(tmp_path / "base", family, tied=family == "qwen2"), settings, tmp_path)
    two_ranks(trained.base, settings, trained.adapter, tmp_path / "out", tensor=2)
    with cpu.device_mode():
        loss, norm, gradients = megatron_gradients(trained.model)
    out, fresh = tmp_path / "out", lora.gather(adapted_model(trained.base, settings))
    for rank in range(2):
        found = json.loads((out / f"found{rank}.json").read_text())
        assert found["loss"] == pytest.approx(loss, abs=1e-5) and found["norm"] == pytest.approx(norm, rel=1e-5)
        theirs = load_file(out / f"gradients{rank}.safetensors")
        assert all(torch.allclose(theirs[name], gradient, atol=1e-5) for name, gradient in gradients.items())
        started = load_file(out / f"fresh{rank}.safetensors")
        assert all(torch.equal(started[name], tensor) for name, tensor in fresh.items())
        written = (out / f"adapter{rank}" / lora_merge.WEIGHTS).read_bytes()
        assert written == (trained.adapter / lora_merge.WEIGHTS).read_bytes()

    model = adapted_model(trained.base, settings)
    with cpu.device_mode():  # saved by two ranks, loaded by one
        loaded = dist_checkpointing.load(checkpoint(model), str(out / "checkpoint"))
    expected = lora.named_adapters(trained.model)
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_two_pipeline_stages_share_out_the_adapter(tmp_path: Path) -> None:
    trained = Trained(make_model(tmp_path / "base", tied=False), ALL, tmp_path)
    two_ranks(trained.base, ALL, trained.adapter, tmp_path / "out", tensor=1)
    for what, expected in (("fresh", adapted_model(trained.base, ALL)), ("loaded", trained.model)):
        stages = [load_file(tmp_path / "out" / f"{what}{rank}.safetensors") for rank in range(2)]
        wholes = lora.gather(expected)
        assert not stages[0].keys() & stages[1].keys() and {**stages[0], **stages[1]}.keys() == wholes.keys()
        assert all(torch.equal({**stages[0], **stages[1]}[name], tensor) for name, tensor in wholes.items())
