"""Our recipes, their schemas, and the configs that travel with the package."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.config.distributed_schema import DistributedConfig
from grpo.config.errors import ConfigError, nearest
from grpo.config.schema import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe: a top-level module that ``tune run NAME`` runs, and the dataclass of its keys."""

    name: str
    schema: type[Any]

    @property
    def file(self) -> Path:
        """The recipe's source file.

        Raises:
            ConfigError: the module is not installed.
        """
        spec = importlib.util.find_spec(self.name)
        if spec is None or spec.origin is None:
            raise ConfigError(f"{self.name}: this recipe's module is not installed")
        return Path(spec.origin)


RECIPES: dict[str, Recipe] = {
    name: Recipe(name=name, schema=schema)
    for name, schema in {
        "grpo_full_finetune_distributed": DistributedConfig,
        "grpo_full_finetune_single_device": TrainConfig,
        "grpo_lora_finetune_distributed": DistributedConfig,
        "grpo_lora_finetune_single_device": TrainConfig,
    }.items()
}


def configs_folder() -> Path:
    """Where the packaged configs lie: inside an installed wheel, or in the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "recipes" / "configs"


def packaged_configs() -> dict[str, Path]:
    """Packaged configs by name, such as ``tiny/full_single_device``, in alphabetical order."""
    folder = configs_folder()
    files = sorted(folder.rglob("*.yaml"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def find_config(name: str) -> Path:
    """The file behind a path or a packaged config's name.

    A path wins over a packaged name; ``.yaml`` may be left out of the latter.

    Raises:
        ConfigError: neither exists; tells the nearest packaged name.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    packaged = packaged_configs()
    found = packaged.get(name.removesuffix(".yaml"))
    if found is None:
        raise ConfigError(f"--config: no file and no packaged config named {name!r}{nearest(name, packaged)}")
    return found


def recipe_of(config: Path) -> Recipe:
    """The recipe that a config's header names in its command (``tune run RECIPE --config ...``).

    Raises:
        ConfigError: the header names none of our recipes.
    """
    with config.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                break
            command = re.search(r"\b(?:tune|grpo) run\s+(.*?)\s--config\b", line)
            if command and command.group(1).split()[-1] in RECIPES:
                return RECIPES[command.group(1).split()[-1]]
    raise ConfigError(
        f"{config}: its header names no recipe of ours; add a line '# tune run RECIPE --config ...' "
        f"or pass --recipe ({', '.join(RECIPES)})"
    )


def find_recipe(name: str) -> Recipe:
    """A recipe by name.

    Raises:
        ConfigError: unknown; tells the nearest name.
    """
    if name not in RECIPES:
        raise ConfigError(f"--recipe: no recipe named {name!r}{nearest(name, RECIPES)}")
    return RECIPES[name]


def configs_of(recipe: Recipe) -> list[str]:
    """Names of the packaged configs whose header names this recipe."""
    return [name for name, file in packaged_configs().items() if recipe_of(file) is recipe]
