"""The embedded model: its folder, its tokenizer, and how much it knows."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, LlamaForCausalLM

from grpo.config.errors import ConfigError
from grpo.data import addition_dataset
from grpo.models import (
    check_checkpoint_dir,
    hf_tokenizer,
    load_weights,
    lora_tiny,
    resolve_checkpoint_dir,
    tiny,
    tiny_model_dir,
)

NUM_LOGITS = 112
SCRIPT = Path(__file__).parents[3] / "scripts" / "make_tiny_model.py"


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    built = tiny().eval()
    load_weights(built, "tiny")
    return built


@pytest.fixture(scope="module")
def tokenizer():
    return hf_tokenizer(str(tiny_model_dir()))


def test_folder_is_complete_and_small(model: torch.nn.Module) -> None:
    check_checkpoint_dir("tiny")
    assert sum(path.stat().st_size for path in tiny_model_dir().iterdir()) <= 3_000_000
    assert sum(p.numel() for p in model.parameters()) <= 1_000_000


def test_name_means_the_package_unless_such_a_folder_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_checkpoint_dir("tiny") == tiny_model_dir()
    (tmp_path / "tiny").mkdir()
    assert resolve_checkpoint_dir("tiny") == Path("tiny")
    assert resolve_checkpoint_dir(tmp_path / "other") == tmp_path / "other"


def test_logits_equal_transformers(model: torch.nn.Module) -> None:
    theirs = LlamaForCausalLM.from_pretrained(tiny_model_dir()).eval()
    tokens = torch.randint(NUM_LOGITS, (4, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert (model(tokens) - theirs(tokens).logits).abs().max() < 1e-4


def test_every_character_survives_and_tags_are_single_tokens(tokenizer) -> None:
    text = "\n" + "".join(chr(code) for code in range(32, 127))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    completion = "<think>1+2 = 3</think><answer>3</answer>"
    ids = tokenizer.encode(completion)
    assert len(ids) == len("1+2 = 3") + len("3") + 4
    assert tokenizer.decode(ids) == completion


def test_tail_of_the_logits_is_undefined(tokenizer) -> None:
    assert tokenizer.undefined_ids(NUM_LOGITS) == list(range(104, 112))


def test_chat_template_gives_the_prompt_it_was_taught(tokenizer) -> None:
    messages = [{"role": "user", "content": "12+34"}]
    ids = tokenizer.encode_prompt("12+34=")
    assert tokenizer.render_chat(messages) == ids
    assert len(ids) == 6
    theirs = AutoTokenizer.from_pretrained(tiny_model_dir())
    assert theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == ids


def test_a_third_of_unseen_sums_is_solved_when_sampled(model: torch.nn.Module, tokenizer) -> None:
    """Exact: the probability of each right completion, no sampling."""
    (eos,) = tokenizer.stop_ids
    rows, starts = [], []
    for task in addition_dataset(size=500, seed=1, split="test"):
        prompt = tokenizer.encode_prompt(f"{task.question}=")
        rows.append([*prompt, *tokenizer.encode(f"<answer>{task.answer}</answer>"), eos])
        starts.append(len(prompt))
    # Padding stands behind what it must not touch.
    tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    place = torch.arange(1, tokens.shape[1])
    lengths = torch.tensor([len(row) for row in rows])
    completion = (place >= torch.tensor(starts)[:, None]) & (place < lengths[:, None])
    with torch.no_grad():
        logits = model(tokens[:, :-1])
    logprobs = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    success = logprobs.masked_fill(~completion, 0).sum(-1).exp()
    greedy = ((logits.argmax(-1) == tokens[:, 1:]) | ~completion).all(-1).float()
    assert 0.28 <= success.mean() <= 0.40
    # Room for GRPO: greedy decoding is mostly wrong, but eight samples mostly contain a right one.
    assert greedy.mean() <= 0.5
    assert (1 - (1 - success) ** 8).mean() >= 0.65


def test_lora_variant_starts_as_the_same_model(model: torch.nn.Module) -> None:
    lora = lora_tiny(["q_proj", "v_proj"], apply_lora_to_mlp=True, lora_rank=4).eval()
    load_weights(lora, "tiny")
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(lora(tokens), model(tokens))
    with pytest.raises(ConfigError, match="'v_prj'"):
        lora_tiny.check(lora_attn_modules=["v_prj"])


def test_script_writes_the_shipped_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the weights, which a warm-up of one batch cannot equal."""
    spec = importlib.util.spec_from_file_location("make_tiny_model", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "make_tiny_model", script)
    spec.loader.exec_module(script)
    brief = ["--target=0", "--measure-every=1", "--held-out=10", "--pairs=80", "--batch-size=4"]
    monkeypatch.setattr(sys, "argv", ["make_tiny_model.py", f"--output-dir={tmp_path}", *brief])
    script.main()
    check_checkpoint_dir(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (tiny_model_dir() / "tokenizer.json").read_bytes()
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        shipped = json.loads((tiny_model_dir() / name).read_text())
        assert json.loads((tmp_path / name).read_text()) == shipped
