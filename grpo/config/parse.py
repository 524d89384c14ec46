"""The decorator that turns a recipe's command line into its checked config."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from grpo.config.errors import ConfigError
from grpo.config.load import load_tree, to_yaml
from grpo.config.options import build
from grpo.config.registry import find_config

Schema = TypeVar("Schema")

USAGE = "--config <file or packaged name> [key=value ...] [~key ...]"


def load_config(name: str, overrides: Iterable[str], schema: type[Schema]) -> Schema:
    """Load and check a config; no model is loaded.

    Args:
        name: a YAML file or a packaged config's name such as ``tiny/full_single_device``.
        overrides: ``key=value``, ``loss.kl_coeff=0.1``, ``rewards.0.weight=2`` or ``~key``.
        schema: the recipe's dataclass, such as :class:`grpo.config.TrainConfig`.

    Raises:
        ConfigError: anything wrong, told in one line.
    """
    return build(schema, load_tree(find_config(name), overrides))


def config_yaml(cfg: Any) -> str:
    """A checked config as YAML text, defaults included; ``--config`` reads it back as the same."""
    return to_yaml({field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg)})


def parse(schema: type[Schema]) -> Callable[[Callable[[Schema], Any]], Callable[[], Any]]:
    """Decorate a recipe's main function: it is called with the checked config.

    Anything wrong with the user's input, also what the recipe itself finds later and raises as
    :class:`ConfigError`, is one line on stderr and exit status 2. Ctrl-C is one line and 130.

    Example:
        >>> @parse(TrainConfig)
        ... def recipe_main(cfg: TrainConfig) -> None: ...
    """

    def decorate(recipe_main: Callable[[Schema], Any]) -> Callable[[], Any]:
        @functools.wraps(recipe_main)
        def wrapper() -> Any:
            try:
                name, overrides = split_arguments(sys.argv[1:])
                return recipe_main(load_config(name, overrides, schema))
            except ConfigError as error:
                print_error(error)
                sys.exit(2)
            except KeyboardInterrupt:
                print("stopped; resume_from_checkpoint=true goes on from the newest step_N", file=sys.stderr)
                sys.exit(130)  # 128 + SIGINT, as a shell reports it

        return wrapper

    return decorate


def print_error(error: ConfigError) -> None:
    """One line on stderr, whatever the message holds.

    Of several ranks on a machine, the first speaks for all: what is wrong with a config, each of them
    finds. The others wait before they speak, since torchrun ends them with the first.
    """
    line = " ".join(str(error).split())
    if int(os.environ.get("LOCAL_RANK", "0")) > 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(5)
        line = f"rank {os.environ.get('RANK')}: {line}"
    print(f"error: {line}", file=sys.stderr, flush=True)


def split_arguments(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The config's name and the overrides in a recipe's arguments.

    Raises:
        ConfigError: ``--config`` is missing, empty or given twice, or there is another option.
    """
    configs: list[str] = []
    overrides: list[str] = []
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        if argument in ("-h", "--help"):
            print(f"usage: tune run RECIPE {USAGE}\nEvery key is described in docs/config.md.")
            sys.exit(0)
        if argument == "--config":
            configs.append(rest.pop(0) if rest else "")
        elif argument.startswith("--config="):
            configs.append(argument.removeprefix("--config="))
        elif argument.startswith("-"):
            raise ConfigError(f"{argument}: unknown option; expected {USAGE}")
        else:
            overrides.append(argument)
    if len(configs) != 1 or not configs[0]:
        raise ConfigError(f"--config: expected one config; usage: {USAGE}")
    return configs[0], overrides
