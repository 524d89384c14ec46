"""GRPO, LoRA adapters, one device.

    tune run grpo_lora_finetune_single_device --config tiny/lora_single_device

``setup`` builds the parts from the config; ``train`` is the algorithm, a line per stage. What a stage
computes is in the part that its line names; docs/numerics.md has every formula and its source.
"""

from __future__ import annotations

from dataclasses import replace

from torchtune.training import set_seed

from grpo.batching import pack
from grpo.build import (
    build_device,
    build_engine,
    build_held_out,
    build_log,
    build_optimizer,
    build_part,
    build_policy,
    build_prompts,
    build_sampling,
    check_optimizer,
    check_vocabulary,
    make_output_dir,
    total_steps,
)
from grpo.config import TrainConfig, config_yaml, parse
from grpo.distributed import StopRequest
from grpo.eval import evaluate
from grpo.metrics import LossTally, StageClock, step_metrics
from grpo.policy import Reference, apply_gradients, check_model, load_model
from grpo.rewards import build_rewards, score
from grpo.schedule import is_due


class GRPOLoRAFinetuneSingleDevice:
    """LoRA finetuning on one device: the base is frozen, and is the reference policy as well."""

    def setup(self, cfg: TrainConfig) -> None:
        """Build every part; what is cheap and can be wrong comes before the model."""
        set_seed(cfg.seed)
        self.cfg = cfg
        self.device = build_device(cfg)
        self.checkpointer = build_part(cfg, "checkpointer", output_dir=cfg.output_dir)
        if not cfg.resume_from_checkpoint:
            self.checkpointer.refuse_to_overwrite()
        self.tokenizer = build_part(cfg, "tokenizer")
        self.rewards = build_rewards(cfg.rewards)
        self.advantage = build_part(cfg, "advantage")
        self.loss = build_part(cfg, "loss")
        self.sampling = build_sampling(cfg, self.tokenizer)
        self.prompts = build_prompts(cfg, self.tokenizer)
        self.held_out = build_held_out(cfg, self.tokenizer)
        self.total_steps = total_steps(cfg, self.prompts)
        check_optimizer(cfg)
        num_embeddings = check_model(cfg.model, lora=True)
        check_vocabulary(self.tokenizer, num_embeddings, self.sampling.stop_ids)
        make_output_dir(cfg)

        checkpoint_dir = self.checkpointer.checkpoint_dir
        self.model = load_model(cfg.model, checkpoint_dir, device=self.device, dtype=cfg.dtype, seed=cfg.seed)
        self.policy = build_policy(cfg, self.model, self.tokenizer, self.device)
        self.reference = Reference(self.model) if self.loss.needs_reference else None
        self.engine = build_engine(cfg, self.model, self.tokenizer)
        self.optimizer, self.scheduler = build_optimizer(cfg, self.policy.parameters(), self.total_steps)

        self.stateful = {"optimizer": self.optimizer, "scheduler": self.scheduler, "prompts": self.prompts}
        self.own = {"engine": self.engine}
        self.steps_done = 0
        if cfg.resume_from_checkpoint:  # last: nothing may seed or draw between this and the loop
            self.steps_done = self.checkpointer.resume(self.model, self.stateful, self.own)

    def train(self) -> None:
        """GRPO, step by step."""
        cfg = self.cfg
        micro_batch_size = cfg.micro_batch_size or cfg.forward_batch_size
        stop = StopRequest()
        log = build_log(cfg, self.steps_done, self.total_steps, (self.prompts, self.held_out))
        if self.steps_done == 0 and self.held_out:
            log.metrics(0, self.evaluate())

        for step in range(self.steps_done + 1, self.total_steps + 1):
            clock, tally = StageClock(), LossTally()

            prompts = self.prompts.take(cfg.gradient_accumulation_steps)
            rollouts = self.engine.generate(prompts, self.sampling, cfg.grpo_samples)
            clock.lap("generate")

            scored = score(rollouts, self.rewards, cfg.max_reward_error_fraction)
            clock.lap("score")

            advantages = self.advantage(scored.rewards, rollouts.group_ids)
            batch = pack(scored, advantages, self.tokenizer.pad_id, keep_flat=self.loss.trains_flat_groups)
            batch = batch.to(self.device)
            if cfg.ppo_epochs > 1:  # with one update per batch, the policy is its own old policy
                batch = replace(batch, old_logprobs=self.policy.frozen_logprobs(batch, micro_batch_size))
            if self.reference:
                with self.reference():
                    batch = replace(batch, ref_logprobs=self.policy.frozen_logprobs(batch, micro_batch_size))
            clock.lap("logprobs")

            for _ in range(cfg.ppo_epochs):
                for micro_batch in batch.split(micro_batch_size):
                    policy_logprobs, entropies = self.policy.logprobs(micro_batch)
                    output = self.loss(policy_logprobs, micro_batch)
                    output.loss.backward()
                    tally.add(output, micro_batch, policy_logprobs, entropies)
                lr = self.scheduler.get_last_lr()[0]
                tally.end_update(lr, *apply_gradients(self.optimizer, cfg.clip_grad_norm))
                self.scheduler.step()
            self.engine.update_weights(self.model)
            clock.lap("update")

            metrics = step_metrics(scored, tally, clock, self.device)
            if self.held_out and is_due(step, cfg.eval_every_n_steps, self.total_steps):
                metrics |= self.evaluate()
            log.rollouts(step, scored, advantages)
            log.metrics(step, metrics)
            stopping = stop.agreed()
            if stopping or is_due(step, cfg.save_every_n_steps, self.total_steps):
                self.checkpointer.save(step, self.model, self.stateful, config_yaml(cfg), self.own)
            if stopping and step < self.total_steps:
                log.say(
                    f"stopped by SIGTERM after step {step}; resume_from_checkpoint=true goes on from there"
                )
                log.close()
                stop.exit()
        log.close()

    def evaluate(self) -> dict[str, float | int | None]:
        """The held-out tasks under the current policy."""
        fraction = self.cfg.max_reward_error_fraction
        return evaluate(self.engine, self.held_out, self.rewards, self.sampling, fraction)


@parse(TrainConfig)
def recipe_main(cfg: TrainConfig) -> None:
    """Set up, then train."""
    recipe = GRPOLoRAFinetuneSingleDevice()
    recipe.setup(cfg)
    recipe.train()


if __name__ == "__main__":
    recipe_main()
