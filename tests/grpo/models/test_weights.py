"""Weights from and to Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torchtune.models.qwen2 import qwen2
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from grpo.config.errors import ConfigError
from grpo.models import (
    check_checkpoint_dir,
    load_hf_state_dict,
    load_weights,
    lora_smollm2,
    read_hf_config,
    save_hf_weights,
    smollm2,
    to_hf_state_dict,
)

HF_SHAPE = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    initializer_range=0.2,
)
SHAPE = dict(
    vocab_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    embed_dim=32,
    intermediate_dim=48,
    max_seq_len=64,
    norm_eps=1e-6,
)


def save_llama(folder: Path, dtype: torch.dtype = torch.float32, tied: bool = True, **save: object) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=tied, **HF_SHAPE)).to(dtype)
    model.save_pretrained(folder, **save)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    save_llama(tmp_path)
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_round_trip_is_bit_equal(tmp_path: Path, dtype: torch.dtype, tied: bool) -> None:
    save_llama(tmp_path, dtype, tied)
    original = load_file(tmp_path / "model.safetensors")
    out = tmp_path / "out"
    out.mkdir()
    save_hf_weights(out, load_hf_state_dict(tmp_path), read_hf_config(tmp_path))
    again = load_file(out / "model.safetensors")
    assert again.keys() == original.keys()
    for name, tensor in original.items():
        assert again[name].dtype == dtype
        assert torch.equal(again[name], tensor), name
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_stored_dtype_can_be_chosen(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    save_hf_weights(out, load_hf_state_dict(llama), read_hf_config(llama), dtype=torch.bfloat16)
    assert {t.dtype for t in load_file(out / "model.safetensors").values()} == {torch.bfloat16}


def test_shards_are_read_through_the_index(tmp_path: Path) -> None:
    save_llama(tmp_path / "one")
    save_llama(tmp_path / "many", max_shard_size="10KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    one, many = load_hf_state_dict(tmp_path / "one"), load_hf_state_dict(tmp_path / "many")
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_stray_tied_output_weight_is_dropped(llama: Path) -> None:
    weights = load_file(llama / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, llama / "model.safetensors", metadata={"format": "pt"})
    assert "output.weight" not in load_hf_state_dict(llama)
    load_weights(smollm2(**SHAPE), llama)


def test_qwen2_logits_equal_transformers_and_round_trip(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen2Config(tie_word_embeddings=True, rope_theta=1e6, rms_norm_eps=1e-6, **HF_SHAPE)
    theirs = Qwen2ForCausalLM(config).eval()
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    theirs.save_pretrained(tmp_path)
    ours = qwen2(tie_word_embeddings=True, rope_base=1e6, **SHAPE).eval()
    load_weights(ours, tmp_path)
    tokens = torch.randint(64, (2, 30))
    with torch.no_grad():
        assert (ours(tokens) - theirs(tokens).logits).abs().max() < 1e-4
    again = to_hf_state_dict(ours.state_dict(), read_hf_config(tmp_path))
    assert all(torch.equal(again[name], t) for name, t in load_file(tmp_path / "model.safetensors").items())


def test_lora_model_loads_its_base_and_keeps_its_adapters(llama: Path) -> None:
    model = lora_smollm2(["q_proj"], **SHAPE)
    torch.nn.init.ones_(model.layers[1].attn.q_proj.lora_b.weight)
    load_weights(model, llama)
    base = load_hf_state_dict(llama)
    assert torch.equal(model.layers[1].attn.q_proj.weight, base["layers.1.attn.q_proj.weight"])
    assert model.layers[1].attn.q_proj.lora_b.weight.eq(1).all()


def test_adapters_are_not_written_as_base_weights(llama: Path) -> None:
    with pytest.raises(ValueError, match="merge or leave out the adapters"):
        to_hf_state_dict(lora_smollm2(["q_proj"], **SHAPE).state_dict(), read_hf_config(llama))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(intermediate_dim=40),
            "layers.0.mlp.w1.weight is [48, 32] in the checkpoint, [40, 32] in the model",
        ),
        (dict(num_layers=3), "layers.2.attn.q_proj.weight [32, 32] is not in the checkpoint"),
        (dict(num_layers=1), "layers.1."),
        (dict(num_heads=2), "num_attention_heads is 4 in config.json, 2 in the model"),
        (dict(rope_base=500), "rope_theta is 10000.0 in config.json, 500 in the model"),
        (dict(norm_eps=1e-5), "rms_norm_eps is 1e-06 in config.json, 1e-05 in the model"),
    ],
)
def test_a_model_of_another_architecture_is_refused(llama: Path, change: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_weights(smollm2(**{**SHAPE, **change}), llama)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def edit_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def test_complete_folder_passes_the_check(llama: Path) -> None:
    check_checkpoint_dir(llama)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "no config.json in"),
        (lambda d: (d / "config.json").write_text("{"), "is not JSON"),
        (lambda d: (d / "model.safetensors").unlink(), "no weights in"),
        (lambda d: (d / "model.safetensors").write_bytes(b""), "is empty"),
        (
            lambda d: edit_config(d, model_type="lama"),
            "unsupported model_type 'lama' (did you mean 'llama'?)",
        ),
        (lambda d: edit_config(d, hidden_size=None), "lacks the number hidden_size"),
        (
            lambda d: (d / "model.safetensors.index.json").write_text(
                '{"weight_map": {"x": "gone.safetensors"}}'
            ),
            "names the missing file gone.safetensors",
        ),
    ],
)
def test_incomplete_folder_is_one_clear_line(llama: Path, damage, message: str) -> None:
    damage(llama)
    with pytest.raises(ConfigError) as caught:
        check_checkpoint_dir(llama)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder .*nowhere"):
        check_checkpoint_dir(tmp_path / "nowhere")


def test_unknown_weight_is_one_clear_line(llama: Path) -> None:
    weights = load_file(llama / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    save_file(weights, llama / "model.safetensors")
    with pytest.raises(ConfigError, match=r"self_attn\.q_proj\.bias"):
        load_hf_state_dict(llama)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_large_models_are_written_in_files_of_a_size_with_an_index(
    llama: Path, tmp_path: Path, dtype: torch.dtype | None
) -> None:
    limit, out = 8192, tmp_path / "out"
    out.mkdir()
    weights = load_hf_state_dict(llama)
    save_hf_weights(out, weights, read_hf_config(llama), dtype, max_shard_bytes=limit)
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert len(files) > 2
    assert files == [f"model-{n:05d}-of-{len(files):05d}.safetensors" for n in range(1, len(files) + 1)]
    stored = {name: load_file(out / name) for name in files}
    sizes = [sum(t.numel() * t.itemsize for t in tensors.values()) for tensors in stored.values()]
    assert max(sizes) <= limit
    assert all(one + other > limit for one, other in zip(sizes, sizes[1:], strict=False))  # none half empty
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: file for file in files for name in sorted(stored[file])}
    assert index["metadata"] == {"total_size": sum(sizes)}


def test_what_was_written_in_several_files_is_read_by_us_and_by_transformers(llama: Path) -> None:
    before = load_hf_state_dict(llama)
    theirs = LlamaForCausalLM.from_pretrained(llama).state_dict()
    (llama / "model.safetensors").unlink()
    save_hf_weights(llama, before, read_hf_config(llama), max_shard_bytes=8192)
    check_checkpoint_dir(llama)
    again = load_hf_state_dict(llama)
    assert again.keys() == before.keys()
    assert all(torch.equal(again[name], before[name]) for name in before)
    for name, tensor in LlamaForCausalLM.from_pretrained(llama).state_dict().items():
        assert torch.equal(tensor, theirs[name]), name


def test_a_weight_larger_than_a_file_has_one_of_its_own(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    weights = load_hf_state_dict(llama)
    save_hf_weights(out, weights, read_hf_config(llama), max_shard_bytes=1)
    assert len(list(out.glob("*.safetensors"))) == len(weights)


def test_a_rank_that_does_not_write_leaves_no_file(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    save_hf_weights(out, load_hf_state_dict(llama), read_hf_config(llama), writes=False, max_shard_bytes=8192)
    assert list(out.iterdir()) == []
