from __future__ import annotations

import pytest

from grpo.config.errors import ConfigError
from grpo.data import PromptLoader, RawPrompt
from grpo.types import PromptBatch, Task


class Characters:
    """One id a character."""

    def encode_prompt(self, text: str, prefill: str = "") -> list[int]:
        return [ord(c) for c in text + prefill]

    def render_chat(self, messages: list[dict[str, str]], prefill: str = "") -> list[int]:
        return self.encode_prompt("".join(m["content"] for m in messages), prefill)


def tasks(n: int) -> list[Task]:
    return [Task(id=str(i), question=f"q{i}", answer=str(i)) for i in range(n)]


def loader(items: int | list[Task], batch: int, **settings) -> PromptLoader:
    given = tasks(items) if isinstance(items, int) else items
    settings.setdefault("max_prompt_tokens", 100)
    return PromptLoader(given, RawPrompt(), Characters(), batch_size=batch, **settings)


def ids(batch: PromptBatch) -> list[str]:
    return [task.id for task in batch.tasks]


def draw(source: PromptLoader, n: int) -> list[list[str]]:
    return [ids(source.next_batch()) for _ in range(n)]


def resumed(source: PromptLoader, *args, **settings) -> PromptLoader:
    copy = loader(*args, **settings)
    copy.load_state_dict(source.state_dict())
    return copy


def test_batch_holds_prompts_tasks_and_prefills():
    source = PromptLoader(
        tasks(3), RawPrompt("{question}=", prefill="<a>"), Characters(), batch_size=3, max_prompt_tokens=10
    )
    batch = source.next_batch()
    for task, prompt, prefill in zip(batch.tasks, batch.prompt_ids, batch.prefills, strict=True):
        assert prompt == [ord(c) for c in task.question + "=<a>"]
        assert prefill == "<a>"


def test_group_ids_are_unique_over_batches_epochs_and_a_resume():
    source = loader(4, 2)
    seen = [group for _ in range(5) for group in source.next_batch().group_ids]
    seen += resumed(source, 4, 2).next_batch().group_ids
    assert seen == list(range(12))


def test_res_01_epoch_boundary():
    # 4 steps an epoch, 2 epochs, saved at step 4: 4 further steps, each item seen twice in all.
    source = loader(8, 2)
    first = draw(source, 4)
    second = draw(resumed(source, 8, 2), 4)
    counts = [sum(batches, []).count(str(i)) for batches in (first, second) for i in range(8)]
    assert counts == [1] * 16
    assert second == draw(source, 4)


def test_res_02_mid_epoch_order():
    whole = draw(loader(10, 2), 15)
    source = loader(10, 2)
    draw(source, 7)
    assert draw(resumed(source, 10, 2), 8) == whole[7:]


def test_res_03_no_repeat_after_resume():
    order = sum(draw(loader(8, 2), 4), [])
    source = loader(8, 2)
    draw(source, 2)
    assert sum(draw(resumed(source, 8, 2), 2), []) == order[4:]


def test_res_04_state_loaded_before_the_next_batch():
    whole = draw(loader(8, 2), 3)
    source = loader(8, 2)
    draw(source, 2)
    copy = loader(8, 2)
    copy.next_batch()  # a loader that was already read from must forget that
    copy.load_state_dict(source.state_dict())
    assert ids(copy.next_batch()) == whole[2]


def test_res_12_final_position():
    source = loader(14, 2)
    assert source.batches_per_epoch == 7
    draw(source, 3 * 7)
    state = source.state_dict()
    assert (state["epoch"], state["batch"]) == (3, 0)
    assert state["epoch"] * source.batches_per_epoch + state["batch"] == 21


def test_res_16_fewer_prompts_than_a_batch():
    with pytest.raises(ConfigError, match=r"4 prompts a batch.*has 3"):
        loader(3, 4, drop_last=True)


def test_res_17_each_epoch_has_its_own_order():
    source = loader(8, 2, seed=0)
    first, second = (sum(draw(source, 4), []) for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second)
    again = loader(8, 2, seed=0)
    assert sum(draw(again, 8), []) == first + second
    assert sum(draw(loader(8, 2, seed=1), 4), []) not in (first, second)


def test_gen_19_over_long_prompts_are_dropped_and_counted():
    given = [Task(id="long", question="x" * 12), Task(id="limit", question="x" * 8), *tasks(2)]
    source = loader(given, 3, max_prompt_tokens=8)
    batch = source.next_batch()
    assert source.dropped_prompts == 1
    assert sorted(ids(batch)) == ["0", "1", "limit"]
    assert max(map(len, batch.prompt_ids)) == 8


def test_gen_20_repeat_order():
    # Batches of 2 of the items 0..4: item 4 forms no full batch. A batch is used twice as a whole, and
    # each of its prompts is repeated in place for its 2 samples.
    source = loader(5, 2, shuffle=False, drop_last=True)
    layout = []
    for _ in range(source.batches_per_epoch):
        batch = source.next_batch()
        for _epoch_of_updates in range(2):
            layout += [int(task.id) for task in batch.tasks for _sample in range(2)]
    assert layout == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3]


def test_all_prompts_too_long():
    with pytest.raises(ConfigError, match=r"all 3 prompts are longer than 1 tokens \(the shortest has 2\)"):
        loader(3, 1, max_prompt_tokens=1)


def test_dropping_can_leave_too_few():
    given = [Task(id="long", question="x" * 12), *tasks(3)]
    with pytest.raises(ConfigError, match=r"4 prompts a batch.*has 3 \(1 too long"):
        loader(given, 4, max_prompt_tokens=8)


@pytest.mark.parametrize(("drop_last", "sizes"), [(True, [2, 2, 2, 2]), (False, [2, 2, 1, 2])])
def test_last_partial_batch(drop_last: bool, sizes: list[int]):
    source = loader(5, 2, drop_last=drop_last)
    assert [len(source.next_batch()) for _ in range(4)] == sizes
    assert source.batches_per_epoch == len(sizes) - 2 + (not drop_last)


def test_partial_batch_smaller_than_batch_size_without_drop_last():
    source = loader(3, 4, drop_last=False)
    assert source.batches_per_epoch == 1
    assert sorted(ids(source.next_batch())) == ["0", "1", "2"]


def test_no_shuffle_keeps_the_order():
    assert draw(loader(4, 2, shuffle=False), 4) == [["0", "1"], ["2", "3"], ["0", "1"], ["2", "3"]]


def test_take_is_the_next_batches_as_one():
    whole = draw(loader(6, 2), 4)
    taken = loader(6, 2).take(4)  # crosses an epoch: a prompt may come twice, as two groups
    assert ids(taken) == sum(whole, [])
    assert taken.group_ids == list(range(8))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ((7, 2, {}), "num_prompts 8, this run has num_prompts 7"),
        ((8, 4, {}), "batch_size 2, this run has batch_size 4"),
        ((8, 2, {"seed": 1}), "seed 0, this run has seed 1"),
        ((8, 2, {"shuffle": False}), "shuffle True, this run has shuffle False"),
    ],
)
def test_state_of_another_run_is_refused(other, message: str):
    items, batch, settings = other
    with pytest.raises(ConfigError, match=message):
        resumed(loader(8, 2), items, batch, **settings)


def test_batches_do_not_share_their_lists_with_the_loader():
    source = loader(2, 2)
    source.next_batch().prompt_ids[0].append(0)
    assert all(0 not in prompt for prompt in source.next_batch().prompt_ids)


def test_no_tasks():
    with pytest.raises(ConfigError, match="no tasks"):
        loader([], 1)
