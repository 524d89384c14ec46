"""When things happen: learning-rate schedules, and what is due at a step.

A schedule's step is one optimizer update.

With T updates in all and w of warm-up, the k-th update (k = 1 .. T) runs at ``k / w`` of the base
rate while ``k <= w`` (so the first update is never lost at rate 0), and after that at a decay
of ``(k - 1 - w) / (T - w)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def _schedule(
    optimizer: Optimizer, num_training_steps: int, num_warmup_steps: int, decay: Callable[[float], float]
) -> LambdaLR:
    def factor(updates_done: int) -> float:
        if updates_done < num_warmup_steps:
            return (updates_done + 1) / num_warmup_steps
        span = max(1, num_training_steps - num_warmup_steps)
        return decay(min(1.0, (updates_done - num_warmup_steps) / span))

    return LambdaLR(optimizer, factor)


def constant_schedule(optimizer: Optimizer, num_training_steps: int, num_warmup_steps: int = 0) -> LambdaLR:
    """Warm-up, then the base rate."""
    return _schedule(optimizer, num_training_steps, num_warmup_steps, lambda progress: 1.0)


def linear_schedule(
    optimizer: Optimizer, num_training_steps: int, num_warmup_steps: int = 0, min_ratio: float = 0.0
) -> LambdaLR:
    """Warm-up, then a straight line to ``min_ratio`` of the base rate."""
    return _schedule(
        optimizer, num_training_steps, num_warmup_steps, lambda p: min_ratio + (1 - min_ratio) * (1 - p)
    )


def cosine_schedule(
    optimizer: Optimizer, num_training_steps: int, num_warmup_steps: int = 0, min_ratio: float = 0.0
) -> LambdaLR:
    """Warm-up, then half a cosine to ``min_ratio`` of the base rate."""
    return _schedule(
        optimizer,
        num_training_steps,
        num_warmup_steps,
        lambda p: min_ratio + (1 - min_ratio) * (1 + math.cos(math.pi * p)) / 2,
    )


def is_due(step: int, every: int | None, last: int) -> bool:
    """Whether something that happens every so many steps, and at the last one, happens now."""
    return step == last or (every is not None and step % every == 0)


def _check(num_warmup_steps: int = 0, min_ratio: float = 0.0) -> None:
    if num_warmup_steps < 0:
        raise ValueError(f"num_warmup_steps must be 0 or more, got {num_warmup_steps}")
    if not 0 <= min_ratio <= 1:
        raise ValueError(f"min_ratio must lie in [0, 1], got {min_ratio}")


for _builder in (constant_schedule, linear_schedule, cosine_schedule):
    _builder.check = _check
