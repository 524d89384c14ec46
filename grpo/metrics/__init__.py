"""Metrics, samples and progress of a run."""

from grpo.metrics.clock import StageClock
from grpo.metrics.jsonl import JsonlWriter
from grpo.metrics.measure import LossTally, rollout_metrics, step_metrics
from grpo.metrics.run_log import RunLog

__all__ = [
    "JsonlWriter",
    "LossTally",
    "RunLog",
    "StageClock",
    "rollout_metrics",
    "step_metrics",
]
