from __future__ import annotations

import json

import pytest
import reasoning_gym

from grpo.config.errors import ConfigError
from grpo.data import reasoning_gym_dataset

SETTINGS = {"min_terms": 2, "max_terms": 2, "max_digits": 1}


def test_tasks_are_stable_and_carry_what_the_scorer_needs():
    tasks = reasoning_gym_dataset("chain_sum", 5, seed=7, config=SETTINGS)
    assert [task.id for task in tasks] == [f"chain_sum-7-{i}" for i in range(5)]
    assert tasks == reasoning_gym_dataset("chain_sum", 5, seed=7, config=SETTINGS)
    for task in tasks:
        carried = task.metadata["reasoning_gym"]
        scorer = reasoning_gym.get_score_answer_fn(carried["name"])
        assert scorer(task.answer, carried["entry"]) == 1.0
        assert scorer("no", carried["entry"]) < 1.0
        assert json.loads(json.dumps(carried))["entry"]["question"] == task.question


def test_an_answer_that_only_the_verifier_knows_is_none():
    assert reasoning_gym_dataset("rush_hour", 1)[0].answer is None


def test_tuples_in_an_entry_stay_tuples():
    task = reasoning_gym_dataset("rearc", 1, seed=1)[0]
    scorer = reasoning_gym.get_score_answer_fn("rearc")
    assert scorer(task.answer, task.metadata["reasoning_gym"]["entry"]) == 1.0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("chain_sums", 3), "no generator 'chain_sums' .did you mean 'chain_sum'"),
        (("chain_sum", 0), "size: expected an integer of at least 1"),
        (
            ("chain_sum", 3, 0, {"max_term": 3}),
            "config.max_term: .*no such setting .did you mean 'max_terms'",
        ),
        (("chain_sum", 3, 0, {"seed": 3}), "config.seed: .*no such setting"),
        (("chain_sum", 3, 0, {"min_terms": 5, "max_terms": 2}), "max_terms must be >= min_terms"),
        (("chain_sum", 3, 0, {"min_terms": "two"}), "chain_sum refuses it: .*'min_terms': 'two'"),
        (("chain_sum", 3, 0, [1]), "expected a mapping"),
        (("chain_sum", 3, "x"), "seed: expected an integer"),
    ],
)
def test_bad_input_is_found_by_the_check_too(args, message: str):
    for call in (reasoning_gym_dataset.check, reasoning_gym_dataset):
        with pytest.raises(ConfigError, match=message):
            call(*args)
