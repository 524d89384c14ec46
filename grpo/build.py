"""From a checked config to the parts that a training recipe puts together.

What the training recipes build alike is built here once; the order in which they build it is theirs.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from grpo.config import ConfigError, DistributedConfig, TrainConfig, config_yaml, instantiate
from grpo.data import PromptLoader
from grpo.distributed import SOLO, Ranks, ShardedWeights, make_mesh, rank_seed, shard
from grpo.generation import Engine
from grpo.metrics import RunLog
from grpo.models import undefined_token_mask
from grpo.policy import DTYPES, Policy
from grpo.schedule import constant_schedule
from grpo.types import SamplingParams


def build_device(cfg: TrainConfig) -> torch.device:
    """Where to train.

    Raises:
        ConfigError: torch sees no such device here, or several processes were started.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"--nproc_per_node: this recipe trains on one device, got {os.environ['WORLD_SIZE']} processes"
        )
    device = torch.device(cfg.device)
    seen = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) >= seen[device.type]:
        raise ConfigError(
            f"device: {cfg.device} is not here; torch sees {seen[device.type]} {device.type} devices"
        )
    return device


# What the recipes use of a part, and a component that has it: signatures do not say what a builder returns.
_EXPECTED = {
    "tokenizer": (("stop_ids", "pad_id", "vocab_size", "is_defined"), "grpo.models.hf_tokenizer"),
    "checkpointer": (("refuse_to_overwrite", "resume", "save"), "grpo.checkpoint.StepCheckpointer"),
    "advantage": (("__call__",), "grpo.advantage.GroupAdvantage"),
    "loss": (("needs_reference", "trains_flat_groups"), "grpo.loss.grpo_loss"),
}


def build_part(cfg: TrainConfig, key: str, **supplied: Any) -> Any:
    """The component of one key, known to be of the right kind.

    Raises:
        ConfigError: it lacks what the recipes use, such as torchtune's own tokenizers.
    """
    node = getattr(cfg, key)
    part = instantiate(node, **supplied)
    names, example = _EXPECTED[key]
    for name in names:
        if not hasattr(part, name):
            raise ConfigError(
                f"{key}: {node['_component_']} makes a {type(part).__name__} without {name}; "
                f"expected one like {example}"
            )
    return part


def check_optimizer(cfg: TrainConfig) -> None:
    """Build optimizer and schedule for a stand-in parameter, to find a wrong value before a model is loaded.

    Raises:
        ConfigError: an impossible value, such as a negative learning rate.
    """
    try:
        build_optimizer(cfg, [nn.Parameter(torch.zeros(1))], 1)
    except ValueError as error:
        raise ConfigError(f"optimizer: {error}") from error


def make_output_dir(cfg: TrainConfig) -> None:
    """Make the run's folder, before time is spent on what could not be written there.

    Raises:
        ConfigError: it cannot be made, or nothing can be written in it.
    """
    folder = Path(cfg.output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"output_dir: cannot write in {folder}: {error.strerror}") from error


def build_sampling(cfg: TrainConfig, tokenizer: Any) -> SamplingParams:
    """How training samples; the tokenizer's stop ids unless the config names others.

    Raises:
        ConfigError: a stop id that the tokenizer does not know.
    """
    for token_id in cfg.stop_token_ids or ():
        if not tokenizer.is_defined(token_id):
            raise ConfigError(
                f"stop_token_ids: the tokenizer has no id {token_id} (its ids end at "
                f"{tokenizer.vocab_size - 1})"
            )
    return SamplingParams(
        max_generated_tokens=cfg.max_generated_tokens,
        temperature=cfg.temperature,
        top_k=cfg.top_k,
        top_p=cfg.top_p,
        stop_ids=tuple(tokenizer.stop_ids if cfg.stop_token_ids is None else cfg.stop_token_ids),
    )


def build_prompts(cfg: TrainConfig, tokenizer: Any) -> PromptLoader:
    """The training prompts, in a seeded order of their own in each epoch."""
    return PromptLoader(
        instantiate(cfg.dataset),
        instantiate(cfg.prompt),
        tokenizer,
        batch_size=cfg.batch_size,
        max_prompt_tokens=cfg.max_prompt_tokens,
        seed=cfg.seed,
        shuffle=cfg.shuffle,
        drop_last=cfg.drop_last,
    )


def build_held_out(cfg: TrainConfig, tokenizer: Any) -> PromptLoader | None:
    """The prompts of ``eval_dataset``, all of them and always in the same order."""
    if cfg.eval_dataset is None:
        return None
    return PromptLoader(
        instantiate(cfg.eval_dataset),
        instantiate(cfg.prompt),
        tokenizer,
        batch_size=cfg.eval_batch_size or cfg.forward_batch_size,
        max_prompt_tokens=cfg.max_prompt_tokens,
        shuffle=False,
        drop_last=False,
    )


def build_policy(cfg: TrainConfig, model: nn.Module, tokenizer: Any, device: torch.device) -> Policy:
    """The model with the sampler's temperature and the sampler's idea of impossible tokens."""
    return Policy(
        model,
        temperature=cfg.temperature,
        undefined=_undefined(cfg, model, tokenizer, device),
        autocast_dtype=_autocast_dtype(cfg),
        logits_chunk_size=cfg.logits_chunk_size,
        activation_checkpointing=cfg.enable_activation_checkpointing,
        compile=cfg.compile,
        device=device,
    )


def shard_policy(cfg: DistributedConfig, policy: Policy, ranks: Ranks) -> ShardedWeights:
    """Cut the policy's model into shares, before it has memory; returns how a sampler reaches it.

    Raises:
        ConfigError: a mesh of another number of ranks, or an embedding that is the output as well.
    """
    decoder = policy.module.decoder
    names = cfg.custom_sharded_layers or []
    parts = [part for name in names if isinstance(part := getattr(decoder, name), nn.Module)]
    if names and len(parts) < len(names) or (parts and not isinstance(decoder.output, nn.Module)):
        raise ConfigError(
            f"custom_sharded_layers: {cfg.model['_component_']} uses its embedding as output too, which "
            "must stay in one unit with it; expected null"
        )
    mesh = make_mesh(ranks, cfg.data_parallel_shard, cfg.data_parallel_replicate)
    dtype = _autocast_dtype(cfg)
    shard(
        policy.module,
        decoder.layers,
        mesh,
        others=parts,
        dtype=dtype,
        reshard_after_forward=cfg.fsdp_reshard_after_forward,
        cpu_offload=cfg.fsdp_cpu_offload,
    )
    return ShardedWeights(
        policy.module, decoder.layers, ranks, dtype=dtype, gather_weights=cfg.gather_weights
    )


def build_engine(
    cfg: TrainConfig, model: nn.Module, tokenizer: Any, ranks: Ranks = SOLO, **supplied: Any
) -> Engine:
    """The engine of the config, given what every engine needs, with this rank's own seed.

    Args:
        supplied: what only an engine on several ranks needs: ``device`` and ``weights``.
    """
    device = supplied.get("device") or next(model.parameters()).device
    return instantiate(
        cfg.engine,
        model=model,
        tokenizer=tokenizer,
        forward_batch_size=cfg.forward_batch_size,
        seed=rank_seed(cfg.seed, ranks.rank),
        undefined=_undefined(cfg, model, tokenizer, device),
        autocast_dtype=_autocast_dtype(cfg),
        **supplied,
    )


def resumes(cfg: TrainConfig, ranks: Ranks) -> bool:
    """Whether to go on from a checkpoint: asked for, or these ranks take the place of failed ones."""
    return cfg.resume_from_checkpoint or ranks.restarted


def check_shares(cfg: DistributedConfig, ranks: Ranks) -> None:
    """Every rank has a prompt in every step.

    Raises:
        ConfigError: there are more ranks than prompts.
    """
    prompts = cfg.batch_size * cfg.gradient_accumulation_steps
    if prompts < ranks.size:
        raise ConfigError(
            f"batch_size: a step has {prompts} prompts (batch_size x gradient_accumulation_steps) for "
            f"{ranks.size} ranks; expected at least one for each"
        )


def check_vocabulary(tokenizer: Any, num_embeddings: int, stop_ids: Sequence[int]) -> None:
    """The tokenizer speaks of ids that the model has.

    Vocabularies may end a little past the model's (Llama 3 defines an image token there): up to
    1% is let pass, and only the ids that every run uses must be the model's.

    Raises:
        ConfigError: the tokenizer belongs to another model.
    """
    if tokenizer.vocab_size > 1.01 * num_embeddings:
        raise ConfigError(
            f"tokenizer: its ids end at {tokenizer.vocab_size - 1}, the model's at {num_embeddings - 1}; "
            "expected the tokenizer that the model was trained with"
        )
    for token_id in (tokenizer.pad_id, *stop_ids):
        if token_id >= num_embeddings:
            raise ConfigError(
                f"tokenizer: its pad or stop id {token_id} is not one of the model's {num_embeddings} ids"
            )


def total_steps(cfg: TrainConfig, prompts: PromptLoader) -> int:
    """Steps of the run; one takes ``gradient_accumulation_steps`` batches of prompts.

    Raises:
        ConfigError: all epochs together are too short for one step.
    """
    if cfg.num_steps is not None:
        return cfg.num_steps
    batches = cfg.epochs * prompts.batches_per_epoch
    if batches < cfg.gradient_accumulation_steps:
        raise ConfigError(
            f"epochs: {cfg.epochs} of {prompts.batches_per_epoch} batches are less than one step, which "
            f"takes gradient_accumulation_steps ({cfg.gradient_accumulation_steps})"
        )
    return batches // cfg.gradient_accumulation_steps


def build_optimizer(
    cfg: TrainConfig, parameters: list[nn.Parameter], steps: int
) -> tuple[Optimizer, LRScheduler]:
    """Optimizer and schedule; the schedule's horizon is optimizer updates, not batches."""
    # The schedule moves on where an update is skipped too, which torch would take for a mistake.
    warnings.filterwarnings("ignore", message=r"Detected call of `lr_scheduler.step\(\)` before")
    optimizer = instantiate(cfg.optimizer, params=parameters)
    updates = steps * cfg.ppo_epochs
    if cfg.lr_scheduler is None:
        return optimizer, constant_schedule(optimizer, updates)
    return optimizer, instantiate(cfg.lr_scheduler, optimizer=optimizer, num_training_steps=updates)


def build_log(
    cfg: TrainConfig,
    steps_done: int,
    steps: int,
    prompts: Sequence[PromptLoader | None],
    ranks: Ranks = SOLO,
) -> RunLog:
    """Metrics, samples and progress of the run, and what is worth saying before it starts.

    Rank 0 writes; the others' log only helps it to.

    Writes the resolved ``config.yaml`` too, unless nothing is left to train: then the one that is
    there is the one the weights were trained with.

    Raises:
        ConfigError: the metric logger needs a package that is not here, or cannot write.
    """
    try:
        wanted = cfg.metric_logger is not None and ranks.is_main
        metric_logger = instantiate(cfg.metric_logger) if wanted else None
    except (ImportError, OSError) as error:
        raise ConfigError(f"metric_logger: {cfg.metric_logger['_component_']}: {error}") from error
    log = RunLog(
        cfg.output_dir,
        steps_done=steps_done,
        total_steps=steps,
        rollouts_every=cfg.log_rollouts_every_n_steps,
        metric_logger=metric_logger,
        ranks=ranks,
    )
    if steps_done < steps and ranks.is_main:
        (Path(cfg.output_dir) / "config.yaml").write_text(config_yaml(cfg))
    if resumes(cfg, ranks) and steps_done == 0:
        log.say(f"no checkpoint in {cfg.output_dir}: starting at step 0")
    for name, loader in zip(("training", "held-out"), prompts, strict=True):
        if loader is not None and loader.dropped_prompts:
            log.say(f"dropped {loader.dropped_prompts} {name} prompts over {cfg.max_prompt_tokens} tokens")
    return log


def _undefined(cfg: TrainConfig, model: nn.Module, tokenizer: Any, device: torch.device) -> Tensor | None:
    return undefined_token_mask(tokenizer, model, device) if cfg.mask_undefined_tokens else None


def _autocast_dtype(cfg: TrainConfig) -> torch.dtype | None:
    return None if cfg.dtype == "fp32" else DTYPES[cfg.dtype]
