"""Advantages against values worked out by hand, case by case."""

from __future__ import annotations

import pytest
import torch

from grpo.advantage import GroupAdvantage, group_advantages
from grpo.types import mean_of_present

NAN = float("nan")


def grouped(rows: list[list[float]], **options: object) -> list[list[float]]:
    """Advantages of equal groups, given and returned as [prompt][sample]."""
    rewards = torch.tensor(rows, dtype=torch.float64)
    ids = torch.arange(len(rows)).repeat_interleave(len(rows[0]))
    return group_advantages(rewards.flatten(), ids, **options).view(rewards.shape).tolist()


def test_adv_01_statistics_are_over_the_samples_of_a_prompt() -> None:
    expected = [[0.8660254, -0.8660254, -0.8660254, 0.8660254], [1.2247449, 0, 0, -1.2247449]]
    for row, want in zip(grouped([[1, 0, 0, 1], [4, 2, 2, 0]], eps=0.0), expected, strict=True):
        assert row == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize(("ddof", "eps", "size"), [(1, 0.0, 0.8660254), (1, 1e-4, 0.8658754), (0, 0.0, 1.0)])
def test_adv_02_std_convention(ddof: int, eps: float, size: float) -> None:
    assert grouped([[1, 0, 0, 1]], ddof=ddof, eps=eps)[0] == pytest.approx(
        [size, -size, -size, size], abs=1e-6
    )


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_adv_04_group_of_one_is_zero(ddof: int, baseline: str) -> None:
    assert grouped([[3.0]], ddof=ddof, baseline=baseline) == [[0.0]]


@pytest.mark.parametrize("eps", [0.0, 1e-8, 1e-4])
def test_adv_05_flat_group_is_exactly_zero_in_float32(eps: float) -> None:
    rewards = torch.tensor([0.9, 0.9, 0.9], dtype=torch.float32)
    assert group_advantages(rewards, torch.zeros(3, dtype=torch.long), eps=eps).tolist() == [0, 0, 0]


def test_adv_07_leave_one_out_is_not_grpo() -> None:
    rewards = [[1, 1, 0, 0, 0]]
    assert grouped(rewards, baseline="leave_one_out", scale="none")[0] == pytest.approx(
        [0.75, 0.75, -0.5, -0.5, -0.5]
    )
    assert grouped(rewards, scale="none")[0] == pytest.approx([0.6, 0.6, -0.4, -0.4, -0.4])
    assert grouped(rewards, eps=0.0)[0] == pytest.approx(
        [1.0954451, 1.0954451, -0.7302967, -0.7302967, -0.7302967], abs=1e-6
    )


def test_adv_08_unscored_samples_enter_no_statistic() -> None:
    rewards, ids = [1, None, 0, None], [7, 7, 7, 7]
    assert GroupAdvantage(scale="none")(rewards, ids).tolist() == [0.5, 0, -0.5, 0]
    assert GroupAdvantage(eps=0.0)(rewards, ids).tolist() == pytest.approx(
        [0.7071068, 0, -0.7071068, 0], abs=1e-6
    )


def test_adv_10_one_abstention_spoils_nobody_elses_advantage() -> None:
    advantage = GroupAdvantage(eps=0.0)
    of_a, of_b = advantage([1, 0], [0, 0]), advantage([None, 2], [0, 0])
    assert of_b.tolist() == [0, 0]
    assert (of_a + of_b).tolist() == pytest.approx([0.7071068, -0.7071068], abs=1e-6)


def test_adv_11_uneven_groups_in_any_order() -> None:
    ids, rewards = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([2.0, 4, 1, 1, 10])
    expected = torch.tensor([-1.0, 1, -3, -3, 6])
    assert group_advantages(rewards, ids, scale="none").tolist() == expected.tolist()
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = group_advantages(rewards[order], ids[order], scale="none")
    assert shuffled.tolist() == expected[order].tolist()


def test_adv_13_a_group_is_whole_wherever_its_samples_lie() -> None:
    # the samples of prompt 5 stand at both ends of the batch, as if two workers had scored them
    rewards, ids = torch.tensor([1.0, 1, 3, 0, 0]), torch.tensor([5, 5, 2, 5, 5])
    assert group_advantages(rewards, ids, scale="none").tolist() == [0.5, 0.5, 0, -0.5, -0.5]


def test_adv_14_normalised_once_per_group() -> None:
    for row in grouped([[1, 0], [10, 0]], eps=0.0):
        assert row == pytest.approx([0.7071068, -0.7071068], abs=1e-6)


def test_adv_16_mean_over_the_values_that_exist() -> None:
    assert mean_of_present([0.4, None, 0.8, None, 0.9]) == pytest.approx(0.7)
    assert mean_of_present([None]) is None


def test_random_groups_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(3)
    rewards = torch.randn(40, generator=generator, dtype=torch.float64)
    rewards[::7] = NAN
    ids = torch.randint(0, 6, (40,), generator=generator)
    got = group_advantages(rewards, ids, eps=1e-4)
    for i in range(40):
        group = [r for r, g in zip(rewards.tolist(), ids.tolist(), strict=True) if g == ids[i] and r == r]
        mean = sum(group) / len(group)
        std = (sum((r - mean) ** 2 for r in group) / (len(group) - 1)) ** 0.5
        want = 0.0 if rewards[i].isnan() else (rewards[i].item() - mean) / (std + 1e-4)
        assert got[i].item() == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("settings", [{"ddof": 2}, {"eps": -1.0}])
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        GroupAdvantage.check(**settings)


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="group_ids"):
        group_advantages(torch.zeros(3), torch.zeros(2, dtype=torch.long))
