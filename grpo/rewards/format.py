"""The reward for a completion of the asked form."""

from __future__ import annotations

from collections.abc import Sequence

from grpo.config.errors import ConfigError
from grpo.rewards.answer import check_tag
from grpo.rewards.extraction import END_MARKERS, strip_end_markers
from grpo.types import Sample


class TagFormat:
    """1.0 where each tag opens once and closes once, in order, one after the other; else 0.0.

    The sample's text is the whole turn, prefill included, so a template that opens ``<think>``
    itself needs nothing here. Newlines anywhere are fine. What stands within a tag is not judged.

    Args:
        tags: the names, in the order asked for.
        allow_text_outside: whether text may stand before, between and after the tags.
        end_markers: end-of-turn and padding markers that are not counted as text at the end.

    Raises:
        ConfigError: no tag, one named twice, or a name that is none.
    """

    def __init__(
        self,
        tags: Sequence[str] = ("think", "answer"),
        allow_text_outside: bool = False,
        end_markers: Sequence[str] = END_MARKERS,
    ) -> None:
        if isinstance(tags, str) or not tags:
            raise ConfigError(f"tags: expected a list of at least one name, got {tags!r}")
        for tag in tags:
            check_tag("tags", tag)
        if len(set(tags)) != len(tags):
            raise ConfigError(f"tags: a name is given twice in {list(tags)}")
        if isinstance(end_markers, str) or not all(end_markers):
            raise ConfigError(
                f"end_markers: expected a list of strings that are not empty, got {end_markers!r}"
            )
        self._parts = tuple(part for tag in tags for part in (f"<{tag}>", f"</{tag}>"))
        self._allow_text_outside = allow_text_outside
        self._end_markers = tuple(end_markers)

    def __call__(self, sample: Sample) -> float:
        """1.0 or 0.0."""
        rest = strip_end_markers(sample.text, self._end_markers)
        if any(rest.count(part) != 1 for part in self._parts):
            return 0.0
        outside = []
        for i, part in enumerate(self._parts):
            before, found, rest = rest.partition(part)
            if not found:  # it stands earlier: the order is wrong
                return 0.0
            if i % 2 == 0:
                outside.append(before)
        outside.append(rest)
        return float(self._allow_text_outside or not "".join(outside).strip())

    @staticmethod
    def check(**kwargs: object) -> None:
        """What the constructor checks, before anything is loaded."""
        TagFormat(**kwargs)
