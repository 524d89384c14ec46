"""The ``grpo`` command: torchtune's subcommands with our recipes and configs."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

from grpo.config import ConfigError, find_config, load_config
from grpo.config.errors import nearest
from grpo.config.parse import print_error
from grpo.config.registry import RECIPES, configs_of, find_recipe, packaged_configs, recipe_of

SMOLLM2 = "smollm2"


def main() -> None:
    """Entry point of the console script; exits with status 2 on bad input."""
    parser = build_parser(sys.argv[1] if len(sys.argv) > 1 else "")
    args, rest = parser.parse_known_args()
    # argparse takes no positional arguments after an option; overrides may stand anywhere.
    if rest and (args.func is not _validate or any(argument.startswith("-") for argument in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.overrides += rest
    try:
        args.func(args)
    except ConfigError as error:
        print_error(error)
        sys.exit(2)


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of all subcommands.

    Args:
        command: the subcommand that was asked for. Only for ``run`` and ``download`` are
            torchtune's own parsers set up, since importing them takes seconds.
    """
    parser = argparse.ArgumentParser(prog="grpo", description="GRPO recipes: list, copy, check and run them.")
    parser.set_defaults(func=lambda args: parser.print_help())
    subparsers = parser.add_subparsers(title="subcommands")
    _add_download(subparsers, torchtune=command == "download")
    _add_ls(subparsers)
    _add_cp(subparsers)
    _add_run(subparsers, torchtune=command == "run")
    _add_validate(subparsers)
    return parser


def _add_ls(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "ls",
        help="List the recipes and their configs",
        description="List the recipes and their configs",
    )
    parser.set_defaults(func=_ls)


def _ls(args: argparse.Namespace) -> None:
    print(f"{'RECIPE':<40} {'CONFIG':<40}")
    for recipe in RECIPES.values():
        for i, config in enumerate(configs_of(recipe) or ["<>"]):
            print(f"{recipe.name if i == 0 else '':<40} {config:<40}")


def _add_cp(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "cp",
        usage="grpo cp <recipe|config> destination [OPTIONS]",
        help="Copy a recipe or config to a local path",
        description="Copy a recipe or config to a local path",
        epilog=textwrap.dedent(
            """\
            examples:
                $ grpo cp grpo_full_finetune_single_device my_recipe.py
                $ grpo cp tiny/full_single_device ./my_configs/mine.yaml --make-parents
            """
        ),
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("file", help="Recipe or config to copy; `grpo ls` lists them")
    parser.add_argument("destination", type=Path, help="Folder or file to copy to")
    parser.add_argument("-n", "--no-clobber", action="store_true", help="Do not overwrite a file")
    parser.add_argument("--make-parents", action="store_true", help="Create missing parent folders")
    parser.set_defaults(func=_cp)


def _cp(args: argparse.Namespace) -> None:
    configs = packaged_configs()
    if args.file in RECIPES:
        source = RECIPES[args.file].file
    elif args.file in configs:
        source = configs[args.file]
    else:
        hint = nearest(args.file, [*RECIPES, *configs])
        raise ConfigError(f"{args.file}: no such recipe or config{hint}; `grpo ls` lists them")
    destination = args.destination
    if not destination.is_dir() and destination.suffix != source.suffix:
        destination = destination.with_name(destination.name + source.suffix)
    target = destination / source.name if destination.is_dir() else destination
    if args.no_clobber and target.exists():
        print(f"File already exists at {target.absolute()}, not overwriting.")
        return
    if args.make_parents:
        target.parent.mkdir(parents=True, exist_ok=True)
    elif not target.parent.is_dir():
        raise ConfigError(f"{target.parent}: no such folder; --make-parents creates it")
    print(f"Copied file to {shutil.copyfile(source, target)}")


def _add_run(subparsers: argparse._SubParsersAction, *, torchtune: bool) -> None:
    about = "Run a recipe. For distributed recipes, this supports all torchrun arguments."
    if not torchtune:
        subparsers.add_parser("run", help=about)
        return
    from torchtune._cli.run import Run

    Run.create(subparsers)
    parser = subparsers.choices["run"]
    parser.prog = "grpo run"
    parser.usage = "grpo run [TORCHRUN-OPTIONS] <recipe> --config <config> [RECIPE-OPTIONS]"
    parser.epilog = textwrap.dedent(
        """\
        examples:
            $ grpo run grpo_full_finetune_single_device --config tiny/full_single_device
            $ grpo run grpo_full_finetune_single_device --config mine.yaml loss.kl_coeff=0.1

        `tune run` does the same, but where several processes were started its own exit status says
        no more than that something went wrong.
        """
    )
    tune_run = parser.get_default("func")
    parser.set_defaults(func=lambda args: _run(args, tune_run))


def _run(args: argparse.Namespace, tune_run: Callable[[argparse.Namespace], None]) -> None:
    """Run a recipe; of several ranks, exit with the status of the one that failed first."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from grpo.distributed.stop import EXIT_STOPPED, STOPPED_FILE

    with tempfile.TemporaryDirectory() as folder:
        stopped = Path(folder) / "stopped"
        os.environ[STOPPED_FILE] = str(stopped)
        try:
            tune_run(args)
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            if failure.exitcode not in (2, EXIT_STOPPED):  # of which the rank has said everything
                print(error, file=sys.stderr)
            sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)
        except SignalException as error:
            sys.exit(EXIT_STOPPED if stopped.exists() else 128 + error.sigval)
        finally:
            del os.environ[STOPPED_FILE]


def _add_validate(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "validate",
        usage="grpo validate <config> [--recipe RECIPE] [key=value ...]",
        help="Check a config, all keys and components, without loading a model",
        description="Check a config, all keys and components, without loading a model",
    )
    parser.add_argument("config", help="A YAML file or a packaged config's name")
    parser.add_argument("overrides", nargs="*", help="Overrides: key=value or ~key")
    parser.add_argument("--recipe", help="The recipe that the config is for (default: as its header says)")
    parser.set_defaults(func=_validate)


def _validate(args: argparse.Namespace) -> None:
    recipe = find_recipe(args.recipe) if args.recipe else recipe_of(find_config(args.config))
    load_config(args.config, args.overrides, recipe.schema)
    print("Config is well-formed!")


def _add_download(subparsers: argparse._SubParsersAction, *, torchtune: bool) -> None:
    about = f"Download a model: {SMOLLM2}, or anything that `tune download` takes."
    if not torchtune:
        subparsers.add_parser("download", help=about)
        return
    from torchtune._cli.download import Download

    Download.create(subparsers)
    parser = subparsers.choices["download"]
    tune_download = parser.get_default("func")
    parser.prog = "grpo download"
    parser.usage = "grpo download <smollm2|repo-id> --output-dir DIR [OPTIONS]"
    parser.description = about
    parser.epilog = textwrap.dedent(
        f"""\
        examples:
            $ grpo download {SMOLLM2} --output-dir models/SmolLM2-135M-Instruct
            $ grpo download Qwen/Qwen2.5-0.5B-Instruct --output-dir models/Qwen2.5-0.5B-Instruct
        """
    )
    parser.set_defaults(func=lambda args: _download(args) if args.repo_id == SMOLLM2 else tune_download(args))


def _download(args: argparse.Namespace) -> None:
    if args.output_dir is None:
        raise ConfigError(f"--output-dir: needed for {SMOLLM2}, such as --output-dir models/SmolLM2-135M")
    from grpo.models.download import download_smollm2

    print(download_smollm2(args.output_dir))


if __name__ == "__main__":
    main()
