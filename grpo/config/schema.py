"""The keys of the training recipes, with their types, limits and help. Read by `docs/config.md`."""

from __future__ import annotations

import dataclasses
from typing import Literal

from grpo.config.checks import check_context, check_only_one, check_rewards
from grpo.config.errors import ConfigError
from grpo.config.options import Component, option, slot


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardExtras:
    """Keys that an item of ``rewards`` carries beside its component's arguments."""

    weight: float = option("factor of this reward in the sum", default=1.0)
    success: bool = option("this reward is the success measure: 1 or more is a success", default=False)
    name: str | None = option("name in metrics and logs (null: the component's own name)", default=None)


# What every engine is given.
ENGINE_ARGUMENTS = ("model", "tokenizer", "forward_batch_size", "seed", "undefined", "autocast_dtype")

REWARD_EXTRAS = tuple(field.name for field in dataclasses.fields(RewardExtras))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Keys of the recipes that train: full or LoRA, on one device or several.

    Components stay plain nodes; :func:`grpo.config.instantiate` builds them when their turn comes.
    """

    output_dir: str = option(
        "folder for metrics, checkpoints and the resolved config", pattern=r".+", pattern_help="a folder"
    )
    seed: int = option(
        "seed of the data order, the sampling and the initialisation",
        default=0,
        at_least=0,
        at_most=2**32 - 1,
    )
    device: str = option(
        "where to train",
        default="cpu",
        pattern=r"cpu|mps|cuda(:\d+)?",
        pattern_help="'cpu', 'cuda', 'cuda:N' or 'mps'",
    )
    dtype: Literal["fp32", "bf16"] = option(
        "bf16: compute under bf16 autocast, trainable weights stay fp32, frozen ones are bf16", default="fp32"
    )
    compile: bool = option("compile the model's layers with torch.compile", default=False)
    enable_activation_checkpointing: bool = option(
        "recompute activations in the backward pass: less memory, more time", default=False
    )

    model: Component = slot("builder of a torchtune TransformerDecoder; a LoRA variant for the LoRA recipes")
    tokenizer: Component = slot("tokenizer with its chat template")
    checkpointer: Component = slot(
        "reads the initial weights, writes step checkpoints", supplied=("output_dir",)
    )
    resume_from_checkpoint: bool = option("continue from the newest checkpoint in output_dir", default=False)
    save_every_n_steps: int | None = option(
        "save after every so many steps (null: only at the end)", default=None, at_least=1
    )

    dataset: Component = slot("the training tasks")
    prompt: Component = slot("template that turns a task's question into prompt tokens")
    max_prompt_tokens: int = option("longer prompts are dropped and counted", at_least=1)
    batch_size: int = option("prompts of one batch", at_least=1)
    shuffle: bool = option("new seeded order in every epoch", default=True)
    drop_last: bool = option("leave out an epoch's last, smaller batch", default=True)

    engine: Component = slot(
        "what samples completions",
        default={"_component_": "grpo.generation.NativeEngine"},
        supplied=ENGINE_ARGUMENTS,
    )
    grpo_samples: int = option("completions sampled for each prompt: its group", at_least=2)
    forward_batch_size: int = option("at most so many sequences are decoded together", at_least=1)
    max_generated_tokens: int = option("longest completion in tokens, stop token included", at_least=1)
    temperature: float = option(
        "divides the logits in sampling and in the loss alike", default=1.0, more_than=0
    )
    top_k: int | None = option(
        "sample from the k likeliest tokens only (null: all)", default=None, at_least=1
    )
    top_p: float | None = option(
        "sample from the likeliest tokens that reach this probability together (null: all)",
        default=None,
        more_than=0,
        at_most=1,
    )
    mask_undefined_tokens: bool = option(
        "give ids that the tokenizer does not define probability 0, in sampling and in the loss alike",
        default=True,
    )
    stop_token_ids: list[int] | None = option(
        "ids that end a completion (null: the tokenizer's own)", default=None, at_least=0
    )

    rewards: list[Component] = slot(
        "rewards of a completion; their weighted sum is trained on, exactly one is the success measure",
        many=True,
        extras=RewardExtras,
        called_with="sample",
    )
    max_reward_error_fraction: float = option(
        "stop when more than this part of a step's reward calls fail", default=0.1, at_least=0, at_most=1
    )
    advantage: Component = slot("from the rewards of a group to advantages")
    loss: Component = slot("the objective")

    optimizer: Component = slot("a torch.optim optimizer", supplied=("params",))
    lr_scheduler: Component | None = slot(
        "learning rate schedule; its horizon counts optimizer updates (null: constant)",
        default=None,
        supplied=("optimizer", "num_training_steps"),
    )
    ppo_epochs: int = option("passes over each step's rollouts", default=1, at_least=1)
    gradient_accumulation_steps: int = option(
        "batches of prompts, one after the other, behind one step", default=1, at_least=1
    )
    micro_batch_size: int | None = option(
        "sequences of one forward and backward pass (null: forward_batch_size)", default=None, at_least=1
    )
    clip_grad_norm: float | None = option(
        "largest gradient norm (null: no clipping)", default=None, more_than=0
    )
    logits_chunk_size: int = option(
        "response tokens whose logits are in memory at once", default=512, at_least=1
    )

    num_steps: int | None = option(
        "steps to train; exactly one of num_steps and epochs", default=None, at_least=1
    )
    epochs: int | None = option(
        "passes over the dataset; exactly one of num_steps and epochs", default=None, at_least=1
    )

    metric_logger: Component | None = slot(
        "a torchtune metric logger beside metrics.jsonl, which is always written", default=None
    )
    log_rollouts_every_n_steps: int | None = option(
        "write sampled completions to rollouts.jsonl (null: never)", default=None, at_least=1
    )
    eval_dataset: Component | None = slot("held-out tasks", default=None)
    eval_every_n_steps: int | None = option("evaluate after every so many steps", default=None, at_least=1)
    eval_batch_size: int | None = option(
        "prompts decoded together in evaluation (null: forward_batch_size)", default=None, at_least=1
    )

    def cross_check(self) -> None:
        """Checks over several keys.

        Raises:
            ConfigError: naming the keys, what was expected, and the values.
        """
        if self.output_dir.startswith("~"):
            raise ConfigError(f"output_dir: ~ is not expanded, write it out; got {self.output_dir!r}")
        check_only_one("num_steps", self.num_steps, "epochs", self.epochs)
        if self.eval_every_n_steps is not None and self.eval_dataset is None:
            raise ConfigError("eval_every_n_steps: needs eval_dataset, which is not set")
        check_rewards(self.rewards)
        tokens = {
            "max_prompt_tokens": self.max_prompt_tokens,
            "max_generated_tokens": self.max_generated_tokens,
        }
        check_context(tokens, self.model, self.checkpointer)
