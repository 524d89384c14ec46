"""Tasks from a JSON-lines file of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo.config.errors import ConfigError
from grpo.data.files import Row, check_first_row, existing_file, positive, read_rows, require_columns, text_of
from grpo.types import Task


def jsonl_dataset(
    path: str,
    question_column: str = "question",
    answer_column: str | None = "answer",
    id_column: str | None = None,
    metadata_columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> list[Task]:
    """Tasks from a file with one JSON object a line (or a ``.parquet`` file with such columns).

    Args:
        path: the file.
        question_column: the problem's text.
        answer_column: the reference answer, text or a number; None where only a verifier can judge.
        id_column: a unique id; None numbers the rows from 0.
        metadata_columns: columns that rewards need, kept as they are in ``Task.metadata``.
        limit: the first so many rows only; None takes all.

    Raises:
        ConfigError: no such file, an empty file, a bad row (with its line), a missing column (with the
            nearest name), an id that comes twice.
    """
    if limit is not None:
        positive("limit", limit)
    file = existing_file("path", path)
    columns = _columns(question_column, answer_column, id_column, metadata_columns)
    tasks: list[Task] = []
    seen: dict[str, str] = {}
    for place, row in read_rows(file):
        if len(tasks) == limit:
            break
        require_columns(place, row, columns)
        task_id = text_of(place, row, id_column) if id_column else str(len(tasks))
        if task_id in seen:
            raise ConfigError(f"{place}: id {task_id!r} was already used at {seen[task_id]}")
        seen[task_id] = place
        tasks.append(_task(place, row, task_id, question_column, answer_column, metadata_columns or ()))
    if not tasks:
        raise ConfigError(f"{file}: no rows")
    return tasks


def _check_jsonl_dataset(
    path: str,
    question_column: str = "question",
    answer_column: str | None = "answer",
    id_column: str | None = None,
    metadata_columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> None:
    """The file exists and its first row has the columns."""
    if limit is not None:
        positive("limit", limit)
    file = existing_file("path", path)
    check_first_row(file, _columns(question_column, answer_column, id_column, metadata_columns))


jsonl_dataset.check = _check_jsonl_dataset


def _columns(
    question: str, answer: str | None, task_id: str | None, metadata: Sequence[str] | None
) -> list[str]:
    if isinstance(metadata, str):
        raise ConfigError(f"dataset metadata_columns: expected a list of names, got {metadata!r}")
    return [name for name in (question, answer, task_id, *(metadata or ())) if name is not None]


def _task(
    place: str, row: Row, task_id: str, question: str, answer: str | None, metadata: Sequence[str]
) -> Task:
    kept: dict[str, Any] = {name: row[name] for name in metadata}
    return Task(
        id=task_id,
        question=text_of(place, row, question),
        answer=text_of(place, row, answer) if answer else None,
        metadata=kept,
    )
