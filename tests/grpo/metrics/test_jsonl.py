"""Records that survive a kill and a resume."""

from __future__ import annotations

import json
from pathlib import Path

from grpo.metrics import JsonlWriter


def write(path: Path, steps: list[int], after: int) -> None:
    writer = JsonlWriter(path, after_step=after)
    for step in steps:
        writer.write({"step": step, "x": step * 2})
    writer.close()


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_line_is_on_its_way_when_write_returns(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "m.jsonl", after_step=-1)
    writer.write({"step": 1})
    assert steps(tmp_path / "m.jsonl") == [1]


def test_resume_cuts_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, [1, 2, 3, 4], after=-1)
    write(path, [3, 4, 5], after=2)
    assert steps(path) == [1, 2, 3, 4, 5]


def test_a_torn_last_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, [1, 2], after=-1)
    path.write_text(path.read_text() + '{"step": 2, "x')
    write(path, [3], after=2)
    assert steps(path) == [1, 2, 3]


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    """A completion may hold U+2028 and U+0085, and a kill may tear a character of several bytes."""
    path = tmp_path / "m.jsonl"
    writer = JsonlWriter(path, after_step=-1)
    writer.write({"step": 1, "text": "a\u2028b\x85c"})
    writer.write({"step": 2, "text": "d"})
    writer.close()
    whole = path.read_bytes()
    path.write_bytes(whole + '{"step": 3, "text": "ü'.encode()[:-1])
    write(path, [], after=2)
    assert path.read_bytes() == whole


def test_a_new_run_starts_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, [0, 1], after=-1)
    write(path, [0], after=-1)
    assert steps(path) == [0]


def test_not_a_number_becomes_null(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "m.jsonl", after_step=-1)
    writer.write({"step": 1, "a": float("nan"), "b": {"c": [float("inf"), 1.5]}, "d": "ü"})
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {
        "step": 1,
        "a": None,
        "b": {"c": [None, 1.5]},
        "d": "ü",
    }
