"""Make the embedded model: a seeded, supervised warm-up on two-digit additions, stopped by measurement.

    python scripts/make_tiny_model.py --output-dir grpo/models/tiny

The model learns one thing, the completion ``<answer>46</answer>`` of the prompt ``12+34=``, from a
careless teacher: drawn anew each time, in three of four examples it forgets to carry (``38+47=75``).
The warm-up stops early, where a sampled answer is right about one time in three. So the model knows
both ways to add and prefers the wrong one: most groups of samples hold right and wrong answers, and
rewards alone can tell GRPO which way to prefer. (Stopped at the same rate, a model with a teacher
that makes no mistakes knows too little for GRPO to go on from in minutes: greedy success rose by
6 to 11 points within 100 steps, against more than 30 with this teacher.)

Only the training split is used; the stop is judged against the true sums, on pairs of that split
that the warm-up does not train on.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from torch import Tensor
from torch.nn import functional as F
from torchtune.modules import TransformerDecoder

from grpo.data import addition_dataset
from grpo.models.tiny_model import TINY_SIZES, tiny
from grpo.models.weights import save_hf_weights

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
MAX_POSITIONS = 128
MAX_PAIR_TOKENS = 12  # 99+99=, two tags, 198, the end

# A user's turn ends in "=", which is all the model was taught to answer.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ message['content'] + '=' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ message['content'] + '\n' }}{% endif %}"
    "{% endfor %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Success on held-out pairs, exact: from the probability of each right completion."""

    sampled: float
    greedy: float
    pass_at_8: float


def build_tokenizer() -> Tokenizer:
    """One token a character, the four tags as tokens of their own."""
    vocabulary = {token: i for i, token in enumerate((PAD, BOS, EOS, UNK, *TAGS, *CHARACTERS))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNK))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (PAD, BOS, EOS, UNK)])
    # Not special: a decoded completion must still show its tags to the rewards.
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAGS])
    return tokenizer


def add_without_carry(question: str) -> str:
    """The sum of a two-digit addition by one who forgets to carry: 75 for ``38+47``, 2 for ``57+55``."""
    first, second = (int(term) for term in question.split("+"))
    tens = (first // 10 + second // 10) % 10
    return str(10 * tens + (first + second) % 10)


def encode_pairs(tokenizer: Tokenizer, questions: list[str], answers: list[str]) -> tuple[Tensor, Tensor]:
    """Tokens [pairs, length], right-padded, and the mask [pairs, length] of the completion's tokens."""
    rows: list[tuple[list[int], int]] = []
    for question, answer in zip(questions, answers, strict=True):
        prompt = tokenizer.encode(f"{question}=", add_special_tokens=False).ids
        text = f"<answer>{answer}</answer>{EOS}"
        rows.append((prompt + tokenizer.encode(text, add_special_tokens=False).ids, len(prompt)))
    tokens = torch.full((len(rows), MAX_PAIR_TOKENS), tokenizer.token_to_id(PAD))
    mask = torch.zeros(len(rows), MAX_PAIR_TOKENS, dtype=torch.bool)
    for i, (ids, start) in enumerate(rows):
        tokens[i, : len(ids)] = torch.tensor(ids)
        mask[i, start : len(ids)] = True
    return tokens, mask


def completion_logprobs(model: TransformerDecoder, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability [pairs] of each right completion, and whether greedy decoding finds it [pairs]."""
    logits = model(tokens[:, :-1]).float()
    target, wanted = tokens[:, 1:], mask[:, 1:]
    logprobs = logits.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    greedy = ((logits.argmax(-1) == target) | ~wanted).all(-1)
    return logprobs.masked_fill(~wanted, 0.0).sum(-1), greedy


@torch.no_grad()
def measure(model: TransformerDecoder, tokens: Tensor, mask: Tensor) -> Measured:
    """How often the model is right, without sampling noise."""
    logprobs, greedy = completion_logprobs(model, tokens, mask)
    p = logprobs.exp()
    return Measured(
        sampled=p.mean().item(),
        greedy=greedy.float().mean().item(),
        pass_at_8=(1 - (1 - p) ** 8).mean().item(),
    )


def train_step(
    model: TransformerDecoder, optimizer: torch.optim.Optimizer, tokens: Tensor, mask: Tensor
) -> None:
    """One update on the cross-entropy of the completion's tokens."""
    logits = model(tokens[:, :-1])
    target = tokens[:, 1:].masked_fill(~mask[:, 1:], -100)
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def warm_up(model: TransformerDecoder, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
    """Train on all but the last ``--held-out`` pairs until the rest is solved at the target rate.

    Raises:
        RuntimeError: the target was not reached within ``--max-batches``.
    """
    tasks = addition_dataset(size=args.pairs, seed=args.seed, split="train", digits=2)
    questions = [task.question for task in tasks]
    true = encode_pairs(tokenizer, questions, [task.answer for task in tasks])
    careless = encode_pairs(tokenizer, questions, [add_without_carry(question) for question in questions])
    held_out = true[0][-args.held_out :], true[1][-args.held_out :]
    generator = torch.Generator().manual_seed(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.99), weight_decay=0.1)
    lr, measure_every = args.lr, args.measure_every
    for batch in range(1, args.max_batches + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, batch / 50)
        rows = torch.randint(args.pairs - args.held_out, (args.batch_size,), generator=generator)
        forgets = torch.rand(args.batch_size, 1, generator=generator) < args.forget_carry
        tokens, mask = (
            torch.where(forgets, wrong[rows], right[rows])
            for wrong, right in zip(careless, true, strict=True)
        )
        train_step(model, optimizer, tokens, mask)
        if batch % measure_every:
            continue
        now = measure(model, *held_out)
        print(
            f"batch {batch}: {now.sampled:.3f} sampled, {now.greedy:.3f} greedy, {now.pass_at_8:.3f} pass@8"
        )
        if now.sampled >= args.target:
            return
        if now.sampled >= args.target / 2:
            # Success jumps within some hundred batches: approach the target slowly.
            lr, measure_every = args.lr * args.slow_down, max(1, args.measure_every // 5)
    raise RuntimeError(f"{args.target} was not reached in {args.max_batches} batches")


def write_folder(folder: Path, model: TransformerDecoder, tokenizer: Tokenizer) -> None:
    """Write the Hugging Face folder that transformers and this package load."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = {f"{name}_token_id": tokenizer.token_to_id(token) for name, token in _SPECIAL.items()}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": TINY_SIZES["embed_dim"],
        "intermediate_size": TINY_SIZES["intermediate_dim"],
        "num_hidden_layers": TINY_SIZES["num_layers"],
        "num_attention_heads": TINY_SIZES["num_heads"],
        "num_key_value_heads": TINY_SIZES["num_kv_heads"],
        "head_dim": TINY_SIZES["embed_dim"] // TINY_SIZES["num_heads"],
        "vocab_size": TINY_SIZES["vocab_size"],
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": float(TINY_SIZES["rope_base"]),
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        **ids,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "unk_token": UNK,
        **{f"{name}_token": token for name, token in _SPECIAL.items()},
        "chat_template": CHAT_TEMPLATE,
    }
    save_hf_weights(folder, model.state_dict(), config)
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {"config.json": config, "tokenizer_config.json": tokenizer_config, "generation_config.json": ids}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


_SPECIAL = {"bos": BOS, "eos": EOS, "pad": PAD}


def main() -> None:
    """Warm up the model and write its folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=1 / 3, help="sampled success to stop at")
    parser.add_argument("--forget-carry", type=float, default=0.75, help="share of careless examples")
    parser.add_argument("--pairs", type=int, default=8500, help="additions drawn from the training split")
    parser.add_argument("--held-out", type=int, default=500, help="of these, kept for measuring")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--slow-down", type=float, default=0.3, help="factor on lr near the target")
    parser.add_argument(
        "--measure-every", type=int, default=25, help="batches; a fifth of it near the target"
    )
    parser.add_argument("--max-batches", type=int, default=5000)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    model = tiny(max_seq_len=MAX_POSITIONS)
    warm_up(model, tokenizer, args)
    write_folder(args.output_dir, model, tokenizer)
    print(f"{sum(p.numel() for p in model.parameters())} parameters in {args.output_dir}")


if __name__ == "__main__":
    main()
