"""What README and docs say exists, and the commands of the tour are accepted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from grpo.cli import build_parser
from grpo.config import ConfigError, find_config, load_config
from grpo.config.components import import_target
from grpo.config.registry import RECIPES, packaged_configs, recipe_of
from grpo.rewards import build_rewards
from grpo.types import Sample, Task

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
]
IDS = [page.name for page in PAGES]


def blocks(text: str, language: str) -> list[str]:
    """Bodies of the fenced blocks of a language; the empty language is that of commands."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands() -> Iterator[list[str]]:
    """Words of every `tune` or `grpo` command in README and docs."""
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8"), ""):
            for line in block.splitlines():
                if re.match(r"(\$ )?(tune run (?!RECIPE)|grpo )", line):
                    yield shlex.split(line.removeprefix("$ "), comments=True)


COMMANDS = list(commands())


@pytest.fixture
def tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder as the tour leaves it: the reward's module, and a config that uses it."""
    (tmp_path / "last_digit.py").write_text(blocks(README, "python")[0])
    text = find_config("tiny/full_single_device").read_text(encoding="utf-8")
    addition = blocks(README, "yaml")[0]
    (tmp_path / "mine.yaml").write_text(re.sub(r"(\nrewards:\n(?:  .*\n)+)", rf"\g<1>{addition}", text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_resolve(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = [t.partition("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in t]
    assert [t for t in targets if t and not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_dotted_names_and_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for dotted in sorted(set(re.findall(r"\bgrpo(?:\.[A-Za-z_]\w*)+", text))):
        if dotted.endswith(".X"):
            continue  # a placeholder
        try:
            import_target(dotted)
        except ConfigError as error:
            assert "expected a class or function" in str(error), f"{page.name}: {dotted}: {error}"
    files = re.findall(r"`((?:grpo|tests|recipes|docs|examples)/[\w./]*)`", text)
    assert [file for file in files if not (REPOSITORY / file).exists()] == []


def test_every_test_that_pitfalls_names_exists() -> None:
    defined = set()
    for file in (REPOSITORY / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"def (test_\w+)\(", file.read_text(encoding="utf-8")))
    text = (REPOSITORY / "docs" / "pitfalls.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+)`", text)
    assert len(named) > 50
    assert [name for name in named if name not in defined] == []
    rows = [line for line in text.splitlines() if line.startswith("| ") and "| symptom |" not in line]
    assert [row for row in rows if "`test_" not in row] == []


def test_the_table_of_configs_is_complete() -> None:
    rows = re.findall(r"^\| (?:`(\w+)`)? ?\| `(\w+/\w+)` \|", README, re.MULTILINE)
    listed, recipe = {}, ""
    for name, config in rows:
        recipe = name or recipe
        listed[config] = recipe
    assert listed == {name: recipe_of(file).name for name, file in packaged_configs().items()}


def test_a_claim_of_the_readme_holds_a_recipe_is_short() -> None:
    assert RECIPES
    for recipe in RECIPES.values():
        assert len(recipe.file.read_text(encoding="utf-8").splitlines()) <= 300, recipe.name


@pytest.mark.parametrize("words", COMMANDS, ids=[" ".join(words)[:70] for words in COMMANDS])
def test_a_command_is_accepted(words: list[str], tour: Path) -> None:
    program, verb, *rest = words
    if verb in ("run", "validate"):
        config = rest[rest.index("--config") + 1] if verb == "run" else rest[0]
        named = build_parser(verb).parse_args([verb, *rest]).recipe
        recipe = RECIPES[named] if verb == "run" else recipe_of(find_config(config))
        assert recipe_of(find_config(config)) is recipe
        overrides = [word for word in rest if "=" in word]
        try:
            load_config(config, overrides, recipe.schema)
        except ConfigError as error:
            # The tour shows one mistake; and the folder of a model that must be downloaded is not here.
            assert f"error: {error}" in README or "models/" in str(error)
    else:
        assert program == "grpo"
        assert build_parser(verb).parse_args([verb, *rest]).func


def test_the_tours_reward_is_the_example_and_works(tour: Path) -> None:
    code = (REPOSITORY / "examples" / "last_digit.py").read_text(encoding="utf-8")
    assert blocks(README, "python") == [code]
    schema = RECIPES["grpo_full_finetune_single_device"].schema
    rewards = build_rewards(load_config("mine.yaml", [], schema).rewards)
    assert [r.name for r in rewards] == ["correct", "format", "last_digit"]
    own = rewards[-1]
    assert own.weight == yaml.safe_load(blocks(README, "yaml")[0])[0]["weight"]
    task = Task(id="1", question="12+34", answer="46")
    values = [
        own.reward(Sample(task=task, text=f"<answer>{text}</answer>")) for text in ("46", "6", "47", "")
    ]
    assert values == [1.0, 1.0, 0.0, 0.0]
