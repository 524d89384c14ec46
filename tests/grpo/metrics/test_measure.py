"""The numbers of a step."""

from __future__ import annotations

import pytest
import torch

from grpo.metrics import LossTally, rollout_metrics
from grpo.types import LossOutput, Scored, TrainBatch
from tests.grpo.conftest import make_rollouts


def test_rollout_metrics_by_hand() -> None:
    rollouts = make_rollouts(
        [[1]] * 6,
        [[1, 2], [1], [1, 2, 3], [1], [1], [1]],
        [0, 0, 1, 1, 2, 2],
        finish_reasons=["length", "stop", "stop", "stop", "stop", "stop"],
        undefined_tokens=[2, 0, 0, 1, 0, 0],
    )
    scored = Scored(
        rollouts=rollouts,
        rewards=[1.0, 0.0, 0.5, 0.5, None, 1.0],
        components={"correct": [1.0, 0.0, 0.0, 0.0, None, 1.0], "format": [0.0, 0.0, 1.0, 1.0, 1.0, 0.0]},
        success=[True, False, False, False, None, True],
        errors=1,
    )
    got = rollout_metrics(scored)
    assert got["reward/mean"] == pytest.approx(0.6)
    assert got["reward/std"] == pytest.approx(0.41833, abs=1e-5)
    assert got["reward/correct"] == pytest.approx(0.4) and got["reward/format"] == pytest.approx(0.5)
    assert got["success_rate"] == pytest.approx(0.4)  # EXT-37: a rate, whatever the components add up to
    assert got["informative_fraction"] == pytest.approx(1 / 3)
    assert got["response_length/mean"] == pytest.approx(1.5) and got["response_length/max"] == 3
    assert got["truncated_fraction"] == pytest.approx(1 / 6)
    assert (got["undefined_tokens"], got["reward_errors"], got["unscored"]) == (3, 1, 1)


def test_nothing_judged_gives_null_and_not_zero() -> None:
    scored = Scored(
        rollouts=make_rollouts([[1]], [[1]]),
        rewards=[None],
        components={"a": [None]},
        success=[None],
        errors=1,
    )
    got = rollout_metrics(scored)
    assert got["reward/mean"] is got["reward/a"] is got["success_rate"] is got["reward/std"] is None
    assert got["informative_fraction"] == 0


def batch() -> TrainBatch:
    return TrainBatch(
        tokens=torch.zeros(1, 3, dtype=torch.long),
        loss_mask=torch.tensor([[False, True, True]]),
        lengths=torch.tensor([3]),
        advantages=torch.ones(1),
        sampler_logprobs=torch.tensor([[0.0, -1.0, -2.0]]),
        num_sequences=1.0,
        num_tokens=2.0,
    )


def output(loss: float, clipped: float, top: float) -> LossOutput:
    one = torch.ones(())
    return LossOutput(
        loss=torch.tensor(loss),
        sums={"loss": (torch.tensor(loss), one), "clip_fraction": (torch.tensor(clipped), torch.tensor(2.0))},
        maxima={"ratio/max": torch.tensor(top)},
    )


def test_tally_adds_losses_over_micro_batches_and_averages_them_over_updates() -> None:
    tally, logprobs = LossTally(), torch.tensor([[9.0, -1.5, -2.0]])
    entropies = torch.tensor([[0.0, 1.0, 3.0]])
    for update in range(2):
        tally.add(output(1.0 + update, 1.0, 1.2), batch(), logprobs, entropies)
        tally.add(output(0.5, 0.0, 1.1 + update), batch(), logprobs, entropies)
        tally.end_update(0.1 * (update + 1), 2.0 + 2 * update, applied=update == 0)
    got = tally.metrics()
    assert got["loss"] == pytest.approx((1.5 + 2.5) / 2)
    assert got["clip_fraction"] == pytest.approx(0.25)
    assert got["entropy"] == pytest.approx(2.0)
    assert got["ratio/max"] == pytest.approx(2.1)
    assert got["sampler_gap/mean"] == pytest.approx(0.25) and got["sampler_gap/max"] == pytest.approx(0.5)
    assert got["grad_norm"] == pytest.approx(3.0) and got["lr"] == pytest.approx(0.2)
    assert got["skipped_updates"] == 1


def test_a_step_without_signal_still_has_every_key() -> None:
    tally = LossTally()
    tally.end_update(0.1, 0.0, applied=False)
    got = tally.metrics()
    assert got["loss"] == 0.0 and got["ratio/max"] is None and got["skipped_updates"] == 1
