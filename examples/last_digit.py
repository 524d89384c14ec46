"""A reward of one's own: partial credit for a sum whose last digit is right."""

import re

from grpo.types import Sample


def last_digit(sample: Sample, tag: str = "answer") -> float:
    found = re.search(rf"<{tag}>(\d+)</{tag}>", sample.text)
    return float(found is not None and found[1][-1] == sample.task.answer[-1])
