"""GRPO, all weights, any number of devices.

    tune run --nproc_per_node 2 grpo_full_finetune_distributed --config tiny/full_distributed

Every rank samples and trains on prompts of its own; the weights are cut into shares, one on each rank
(FSDP). ``setup`` builds the parts from the config; ``train`` is the algorithm, a line per stage. What a
stage computes is in the part that its line names; docs/numerics.md has every formula and its source.
"""

from __future__ import annotations

from dataclasses import replace

from torch.distributed.elastic.multiprocessing.errors import record
from torchtune.training import set_seed

from grpo.batching import pack
from grpo.build import (
    build_engine,
    build_held_out,
    build_log,
    build_optimizer,
    build_part,
    build_policy,
    build_prompts,
    build_sampling,
    check_optimizer,
    check_shares,
    check_vocabulary,
    make_output_dir,
    resumes,
    shard_policy,
    total_steps,
)
from grpo.config import DistributedConfig, config_yaml, parse
from grpo.distributed import StopRequest, start_ranks
from grpo.eval import evaluate
from grpo.metrics import LossTally, StageClock, step_metrics
from grpo.policy import Reference, apply_gradients, build_model, check_model, fill_model
from grpo.rewards import build_rewards, score
from grpo.schedule import is_due


class GRPOFullFinetuneDistributed:
    """Full finetuning on several devices."""

    def setup(self, cfg: DistributedConfig) -> None:
        """Build every part; what is cheap and can be wrong comes before the model."""
        self.cfg = cfg
        self.ranks = start_ranks(cfg.device)
        self.device = self.ranks.device
        set_seed(cfg.seed)  # plus the rank
        check_shares(cfg, self.ranks)
        self.checkpointer = build_part(cfg, "checkpointer", output_dir=cfg.output_dir, ranks=self.ranks)
        if not resumes(cfg, self.ranks):
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
        num_embeddings = check_model(cfg.model, lora=False)
        check_vocabulary(self.tokenizer, num_embeddings, self.sampling.stop_ids)
        make_output_dir(cfg)

        # Built without memory, cut into shares, and only then filled: no rank ever holds the whole.
        self.model = build_model(cfg.model, dtype=cfg.dtype)
        self.policy = build_policy(cfg, self.model, self.tokenizer, self.device)
        weights = shard_policy(cfg, self.policy, self.ranks)
        where = "cpu" if cfg.fsdp_cpu_offload else self.device
        fill_model(self.model, self.checkpointer.checkpoint_dir, device=where, seed=cfg.seed)
        self.reference = Reference(self.model) if self.loss.needs_reference else None
        self.engine = build_engine(
            cfg, self.model, self.tokenizer, self.ranks, device=self.device, weights=weights
        )
        self.optimizer, self.scheduler = build_optimizer(cfg, self.policy.parameters(), self.total_steps)

        self.stateful = {"optimizer": self.optimizer, "scheduler": self.scheduler, "prompts": self.prompts}
        self.own = {"engine": self.engine}  # each rank samples with random numbers of its own
        self.steps_done = 0
        if resumes(cfg, self.ranks):  # last: nothing may seed or draw between this and the loop
            self.steps_done = self.checkpointer.resume(self.model, self.stateful, self.own)

    def train(self) -> None:
        """GRPO, step by step; every rank takes the same path, with its own share of the prompts."""
        cfg, ranks = self.cfg, self.ranks
        micro_batch_size = cfg.micro_batch_size or cfg.forward_batch_size
        stop = StopRequest(ranks)
        log = build_log(cfg, self.steps_done, self.total_steps, (self.prompts, self.held_out), ranks)
        if self.steps_done == 0 and self.held_out:
            log.metrics(0, self.evaluate())

        for step in range(self.steps_done + 1, self.total_steps + 1):
            clock, tally = StageClock(), LossTally()

            prompts = ranks.share(self.prompts.take(cfg.gradient_accumulation_steps))
            rollouts = self.engine.generate(prompts, self.sampling, cfg.grpo_samples)
            clock.lap("generate")

            scored = score(rollouts, self.rewards, cfg.max_reward_error_fraction, ranks.sum)
            clock.lap("score")

            advantages = self.advantage(scored.rewards, rollouts.group_ids)  # groups are whole on a rank
            batch = pack(scored, advantages, self.tokenizer.pad_id, keep_flat=self.loss.trains_flat_groups)
            batch = ranks.update_totals(batch).to(self.device)
            passes = ranks.max(batch.passes(micro_batch_size))  # all ranks gather the weights for each
            if cfg.ppo_epochs > 1:  # with one update per batch, the policy is its own old policy
                old_logprobs = self.policy.frozen_logprobs(batch, micro_batch_size, passes)
                batch = replace(batch, old_logprobs=old_logprobs)
            if self.reference:
                with self.reference():
                    ref_logprobs = self.policy.frozen_logprobs(batch, micro_batch_size, passes)
                batch = replace(batch, ref_logprobs=ref_logprobs)
            clock.lap("logprobs")

            for _ in range(cfg.ppo_epochs):
                for micro_batch in batch.split(micro_batch_size, passes):
                    policy_logprobs, entropies = self.policy.logprobs(micro_batch)
                    output = self.loss(policy_logprobs, micro_batch)
                    output.loss.backward()
                    tally.add(output, micro_batch, policy_logprobs, entropies)
                lr = self.scheduler.get_last_lr()[0]
                tally.end_update(lr, *apply_gradients(self.optimizer, cfg.clip_grad_norm))
                self.scheduler.step()
            self.engine.update_weights(self.model)
            clock.lap("update")

            metrics = step_metrics(scored, tally, clock, self.device, ranks)
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
        """The held-out tasks under the current policy, shared out to the ranks."""
        fraction = self.cfg.max_reward_error_fraction
        return evaluate(self.engine, self.held_out, self.rewards, self.sampling, fraction, self.ranks)


@record
@parse(DistributedConfig)
def recipe_main(cfg: DistributedConfig) -> None:
    """Set up, then train."""
    recipe = GRPOFullFinetuneDistributed()
    recipe.setup(cfg)
    recipe.train()
    recipe.ranks.close()


if __name__ == "__main__":
    recipe_main()
