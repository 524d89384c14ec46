"""Rows of local JSON-lines and Parquet files, each with the place it came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo.config.errors import ConfigError, nearest

Row = dict[str, Any]


def existing_file(argument: str, path: str | Path) -> Path:
    """The path of a file that exists.

    Raises:
        ConfigError: it does not, naming the argument it was given to.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"dataset {argument}: {path} does not exist or is no file")
    return file


def read_rows(file: Path) -> Iterator[tuple[str, Row]]:
    """``(place, row)`` for each row of a ``.parquet`` file, or of a JSON-lines file with any other name.

    The place names file and line (Parquet: row, from 1) for error messages.

    Raises:
        ConfigError: a line is not a JSON object; the file is not Parquet.
    """
    return _parquet_rows(file) if file.suffix == ".parquet" else _json_lines(file)


def _json_lines(file: Path) -> Iterator[tuple[str, Row]]:
    with file.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            place = f"{file}:{number}"
            try:
                line = raw.decode("utf-8").strip()
                if not line:
                    continue
                row = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{place}: not valid JSON: {error}") from error
            if not isinstance(row, dict):
                raise ConfigError(f"{place}: expected a JSON object, got {type(row).__name__}")
            yield place, row


def _parquet_rows(file: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow  # heavy, and needed for Parquet files only
    import pyarrow.parquet

    try:
        # Not by path: pyarrow would read folder names such as `split=train` as further columns.
        with file.open("rb") as stream:
            rows = pyarrow.parquet.ParquetFile(stream).read().to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{file}: not a Parquet file: {error}") from error
    for number, row in enumerate(rows, start=1):
        yield f"{file}: row {number}", row


def require_columns(place: str, row: Row, columns: Sequence[str]) -> None:
    """Check that a row has its columns.

    Raises:
        ConfigError: one is missing, naming the place and the nearest column there is.
    """
    for column in columns:
        if column not in row:
            raise ConfigError(f"{place}: no column {column!r}{nearest(column, row)}")


def text_of(place: str, row: Row, column: str) -> str:
    """A column's value as text; numbers are written out.

    Raises:
        ConfigError: the value is empty, or neither text nor a number.
    """
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = "null" if value is None else type(value).__name__
        raise ConfigError(f"{place}: column {column!r} is {kind}, expected text or a number")
    text = str(value)
    if not text.strip():
        raise ConfigError(f"{place}: column {column!r} is empty")
    return text


def check_first_row(file: Path, columns: Sequence[str]) -> None:
    """The cheap check of a file: it has a row, and its first row has the columns.

    Raises:
        ConfigError: it has none, or lacks one.
    """
    for place, row in read_rows(file):
        require_columns(place, row, columns)
        return
    raise ConfigError(f"{file}: no rows")


def positive(argument: str, value: object) -> None:
    """Check that an argument is an integer of at least 1.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{argument}: expected an integer of at least 1, got {value!r}")
