"""GSM8K: grade-school word problems (Cobbe et al. 2021, https://arxiv.org/abs/2110.14168)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from grpo.config.errors import ConfigError
from grpo.data.files import Row, check_first_row, read_rows, require_columns, text_of
from grpo.types import Task

_COLUMNS = ("question", "answer")
_PARTITION = re.compile(r"(\d+)-(\d+)/(\d+)")


def gsm8k_dataset(
    source: str = "openai/gsm8k", split: str = "train", partition: str | None = None, name: str = "main"
) -> list[Task]:
    """GSM8K with the number after ``####`` as the answer, its commas removed.

    The worked solution is kept as ``Task.metadata["solution"]``; ids number the split's rows, whatever
    the partition.

    Args:
        source: a name on the Hugging Face hub, a local ``.jsonl`` or ``.parquet`` file, or a folder
            with ``<split>.jsonl``, ``<split>*.parquet`` or ``<name>/<split>*.parquet``.
        split: ``train`` or ``test``; of a local file it only stands in the ids.
        partition: ``start-end/total`` keeps the rows whose index modulo ``total`` lies in
            ``start..end``, both included, as torchtune's recipe does: ``1-9/10`` leaves out every tenth
            row, and ``0-0/10`` is what it leaves out.
        name: the hub's configuration, ``main`` or ``socratic``.

    Raises:
        ConfigError: a malformed partition or one that keeps nothing, no such file, a row without ``####``,
            a hub that is not reached.
    """
    start, end, total = _parse_partition(partition)
    tasks = [
        _task(place, row, f"gsm8k-{split}-{index}")
        for index, (place, row) in enumerate(_rows(source, split, name))
        if start <= index % total <= end
    ]
    if not tasks:
        raise ConfigError(f"source {source!r}: no rows" + (f" in {partition}" if partition else ""))
    return tasks


def _check_gsm8k_dataset(
    source: str = "openai/gsm8k", split: str = "train", partition: str | None = None, name: str = "main"
) -> None:
    """The partition is well-formed, and a local source exists with its columns; no hub is asked."""
    _parse_partition(partition)
    if _is_local(source):
        check_first_row(_local_files(source, split, name)[0], _COLUMNS)


gsm8k_dataset.check = _check_gsm8k_dataset


def _parse_partition(partition: str | None) -> tuple[int, int, int]:
    if partition is None:
        return 0, 0, 1
    match = _PARTITION.fullmatch(str(partition))
    if match is None:
        raise ConfigError(f"partition {partition!r}: expected start-end/total, such as 1-9/10")
    start, end, total = map(int, match.groups())
    if not start <= end < total:
        raise ConfigError(f"partition {partition!r}: expected start <= end < total, counted from 0")
    return start, end, total


def _task(place: str, row: Row, task_id: str) -> Task:
    require_columns(place, row, _COLUMNS)
    solution, mark, answer = text_of(place, row, "answer").rpartition("####")
    answer = answer.strip().replace(",", "")
    if not mark or not answer:
        raise ConfigError(f"{place}: no answer after '####'")
    return Task(
        id=task_id,
        question=text_of(place, row, "question"),
        answer=answer,
        metadata={"solution": solution.strip()},
    )


def _rows(source: str, split: str, name: str) -> Iterator[tuple[str, Row]]:
    if _is_local(source):
        return chain.from_iterable(read_rows(file) for file in _local_files(source, split, name))
    return _hub_rows(source, split, name)


def _is_local(source: str) -> bool:
    return (
        source.endswith((".jsonl", ".parquet")) or source.startswith(("/", ".", "~")) or Path(source).exists()
    )


def _local_files(source: str, split: str, name: str) -> list[Path]:
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(f"source: {source} does not exist")
    for pattern in (f"{split}.jsonl", f"{split}*.parquet", f"{name}/{split}*.parquet"):
        if files := sorted(path.glob(pattern)):
            return files
    raise ConfigError(f"source: {source} has no {split}.jsonl and no {split}*.parquet")


def _hub_rows(source: str, split: str, name: str) -> Iterator[tuple[str, Row]]:
    import datasets  # slow to import, and needed for the hub only

    try:
        rows = datasets.load_dataset(source, name, split=split)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"source {source!r}: not loaded from the Hugging Face hub ({reason}); "
            "a local .jsonl or .parquet file works too"
        ) from error
    for index, row in enumerate(rows):
        yield f"{source} {split} row {index}", row
