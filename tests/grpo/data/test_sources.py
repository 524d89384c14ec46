from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grpo.config.errors import ConfigError
from grpo.data import addition_dataset, gsm8k_dataset, jsonl_dataset


def write_jsonl(file: Path, rows: list) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return str(file)


def gsm_row(i: int, number: str | None = None) -> dict[str, str]:
    return {"question": f"q{i}", "answer": f"work #### out\n#### {i if number is None else number}"}


# jsonl


def test_jsonl_rows_become_tasks(tmp_path: Path):
    rows = [{"q": "a?", "a": 4, "level": 2, "n": "x"}, "\n", {"q": "b?", "a": "5.0", "level": 3, "n": "y"}]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    columns = {"question_column": "q", "answer_column": "a", "id_column": "n"}
    jsonl_dataset.check(path, **columns, metadata_columns=["level"])
    first, second = jsonl_dataset(path, **columns, metadata_columns=["level"])
    assert (first.id, first.question, first.answer, first.metadata) == ("x", "a?", "4", {"level": 2})
    assert (second.id, second.answer) == ("y", "5.0")


def test_jsonl_without_ids_and_answers(tmp_path: Path):
    path = write_jsonl(tmp_path / "d.jsonl", [{"question": f"q{i}"} for i in range(3)])
    found = jsonl_dataset(path, answer_column=None, limit=2)
    assert [(task.id, task.answer) for task in found] == [("0", None), ("1", None)]


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (["not json\n"], {}, r"d\.jsonl:1: not valid JSON"),
        (["[1]\n"], {}, r"d\.jsonl:1: expected a JSON object, got list"),
        ([], {}, r"d\.jsonl: no rows"),
        ([{"questoin": "q", "answer": "1"}], {}, r":1: no column 'question' .did you mean 'questoin'"),
        ([{"question": "q", "answer": "1"}], {"metadata_columns": ["level"]}, "no column 'level'"),
        ([{"question": "q", "answer": "1"}], {"metadata_columns": "level"}, "expected a list of names"),
        ([{"question": "q", "answer": "1"}], {"limit": 0}, "limit: expected an integer of at least 1, got 0"),
    ],
)
def test_jsonl_bad_input_is_found_by_the_check_too(tmp_path: Path, rows, settings, message: str):
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    for call in (jsonl_dataset.check, jsonl_dataset):
        with pytest.raises(ConfigError, match=message):
            call(path, **settings)


GOOD = {"question": "q", "answer": "1", "id": "a"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{\n", ":2: not valid JSON"),
        ({"question": "q", "id": "b"}, ":2: no column 'answer'"),
        (GOOD | {"id": "b", "answer": None}, ":2: column 'answer' is null"),
        (GOOD | {"id": "b", "answer": ["1"]}, ":2: column 'answer' is list"),
        (GOOD | {"id": "b", "answer": True}, ":2: column 'answer' is bool"),
        (GOOD | {"id": "b", "question": " "}, ":2: column 'question' is empty"),
        (GOOD, r":2: id 'a' was already used at .*:1"),
    ],
)
def test_jsonl_bad_row_is_named_by_its_line(tmp_path: Path, row, message: str):
    path = write_jsonl(tmp_path / "d.jsonl", [GOOD, row])
    jsonl_dataset.check(path, id_column="id")
    with pytest.raises(ConfigError, match=message):
        jsonl_dataset(path, id_column="id")


@pytest.mark.parametrize("call", [jsonl_dataset, jsonl_dataset.check])
def test_jsonl_missing_file(call):
    with pytest.raises(ConfigError, match="dataset path: nowhere.jsonl does not exist"):
        call("nowhere.jsonl")


# gsm8k


def test_gsm8k_answer_is_the_number_after_the_last_mark(tmp_path: Path):
    path = write_jsonl(tmp_path / "g.jsonl", [gsm_row(0, "1,234,567"), gsm_row(1, "-5")])
    first, second = gsm8k_dataset(path, split="test")
    assert (first.id, first.question, first.answer) == ("gsm8k-test-0", "q0", "1234567")
    assert first.metadata == {"solution": "work #### out"}
    assert second.answer == "-5"


def test_gsm8k_partition_is_the_index_modulo_the_total(tmp_path: Path):
    path = write_jsonl(tmp_path / "g.jsonl", [gsm_row(i) for i in range(25)])
    kept = [int(task.answer) for task in gsm8k_dataset(path, partition="1-9/10")]
    left = [int(task.answer) for task in gsm8k_dataset(path, partition="0-0/10")]
    assert left == [0, 10, 20]
    assert kept == [i for i in range(25) if i not in left]
    assert gsm8k_dataset(path, partition="0-0/10")[1].id == "gsm8k-train-10"


@pytest.mark.parametrize("partition", ["1-9", "1-9/10/2", "a-b/10", "9-1/10", "1-10/10", "", "1-9/0"])
def test_gsm8k_malformed_partition(tmp_path: Path, partition: str):
    path = write_jsonl(tmp_path / "g.jsonl", [gsm_row(i) for i in range(3)])
    for call in (gsm8k_dataset.check, gsm8k_dataset):
        with pytest.raises(ConfigError, match="expected start"):
            call(path, partition=partition)


def test_gsm8k_check_asks_no_hub():
    gsm8k_dataset.check(partition="1-9/10")
    with pytest.raises(ConfigError, match="partition"):
        gsm8k_dataset.check(partition="one")


def test_gsm8k_parquet_file_and_folders(tmp_path: Path):
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "main").mkdir()
    for part in range(2):
        rows = [gsm_row(2 * part + i) for i in range(2)]
        parquet.write_table(
            pyarrow.Table.from_pylist(rows), tmp_path / "main" / f"train-0000{part}-of-00002.parquet"
        )
    write_jsonl(tmp_path / "lines" / "test.jsonl", [gsm_row(7)])
    assert [task.answer for task in gsm8k_dataset(str(tmp_path))] == ["0", "1", "2", "3"]
    file = str(tmp_path / "main" / "train-00001-of-00002.parquet")
    gsm8k_dataset.check(file)
    assert [task.answer for task in gsm8k_dataset(file)] == ["2", "3"]
    assert [task.answer for task in gsm8k_dataset(str(tmp_path / "lines"), split="test")] == ["7"]
    for call in (gsm8k_dataset.check, gsm8k_dataset):
        with pytest.raises(ConfigError, match="has no validation.jsonl"):
            call(str(tmp_path), split="validation")


def test_gsm8k_bad_files(tmp_path: Path):
    no_mark = write_jsonl(tmp_path / "g.jsonl", [gsm_row(0), {"question": "q", "answer": "just 3"}])
    with pytest.raises(ConfigError, match=r"g\.jsonl:2: no answer after '####'"):
        gsm8k_dataset(no_mark)
    broken = tmp_path / "b.parquet"
    broken.write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match="not a Parquet file"):
        gsm8k_dataset.check(str(broken))
    with pytest.raises(ConfigError, match="does not exist"):
        gsm8k_dataset.check(str(tmp_path / "nowhere.jsonl"))


def test_gsm8k_hub_rows_and_a_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch):
    import datasets

    asked = []

    def load(*args, **kwargs):
        asked.append((args, kwargs))
        return [gsm_row(3)]

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert gsm8k_dataset(split="test")[0].answer == "3"
    assert asked == [(("openai/gsm8k", "main"), {"split": "test"})]

    def fail(*args, **kwargs):
        raise ConnectionError("Couldn't reach it\nand a long story")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ConfigError, match="openai/gsm8k.*Couldn't reach it") as caught:
        gsm8k_dataset()
    assert "\n" not in str(caught.value)


# addition


def test_addition_tasks_are_sums():
    for task in addition_dataset(50, seed=3):
        a, b = map(int, re.fullmatch(r"(\d+)\+(\d+)", task.question).groups())
        assert int(task.answer) == a + b
        assert task.id == f"addition-{task.question}"


def test_addition_train_and_test_never_share_a_sum_nor_its_mirror_image():
    sides = {}
    for split in ("train", "test"):
        size = 10_000
        with pytest.raises(
            ConfigError, match=r"10000 sums asked for, but the \w+ split .* has \d+"
        ) as caught:
            addition_dataset(size, split=split)
        size = int(str(caught.value).split()[-1])
        found = [task.question for task in addition_dataset(size, split=split)]
        assert len(set(found)) == size
        sides[split] = {frozenset(question.split("+")) for question in found}
        assert split == "train" or 800 < size < 1200
    assert not sides["train"] & sides["test"]
    assert len(sides["train"] | sides["test"]) == 100 * 101 // 2


def test_addition_order_is_seeded_and_grows():
    small = [task.id for task in addition_dataset(10, seed=1)]
    assert small == [task.id for task in addition_dataset(20, seed=1)][:10]
    assert small != [task.id for task in addition_dataset(10, seed=2)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size"),
        ({"size": 91, "digits": 1, "split": "test"}, "91 sums asked for"),
        ({"size": 1, "split": "tset"}, "did you mean 'test'"),
        ({"size": 1, "digits": 4}, "expected 1, 2 or 3, got 4"),
    ],
)
def test_addition_bad_values(settings, message: str):
    for call in (addition_dataset.check, addition_dataset):
        with pytest.raises(ConfigError, match=message):
            call(**settings)
