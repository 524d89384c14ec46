from __future__ import annotations

from pathlib import Path

from grpo.config.reference import reference

REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_reference_in_docs_is_up_to_date() -> None:
    written = (REPOSITORY / "docs" / "config.md").read_text(encoding="utf-8")
    assert written == reference(), "run: python -m grpo.config.reference > docs/config.md"


def test_every_key_has_a_row_with_its_limits_and_default() -> None:
    text = reference()
    assert "| `grpo_samples` | an integer, at least 2 | required |" in text
    assert "| `top_p` | a number or null, more than 0, at most 1 | `null` |" in text
    assert "| `lr_scheduler` | a component or null | `null` |" in text
    assert "`optimizer`, `num_training_steps` |" in text
