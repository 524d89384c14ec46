"""A reward of one's own: partial credit for a sum whose last digit is right."""

import re
from dataclasses import dataclass

from grpo.types import Sample


@dataclass(frozen=True)
class LastDigit:
    tag: str = "answer"

    def __call__(self, sample: Sample) -> float:
        found = re.search(rf"<{self.tag}>(\d+)</{self.tag}>", sample.text)
        return float(found is not None and found[1][-1] == sample.task.answer[-1])
