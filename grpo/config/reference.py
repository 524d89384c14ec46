"""The config reference, written from the schema: ``python -m grpo.config.reference > docs/config.md``."""

from __future__ import annotations

import dataclasses
from typing import Any

from grpo.config.options import Component, Option, Slot, is_required
from grpo.config.registry import RECIPES
from grpo.config.schema import RewardExtras
from grpo.config.typecheck import describe, resolved_hints

_INTRODUCTION = """\
# Config reference

Written by `python -m grpo.config.reference > docs/config.md` from `grpo/config/schema.py`; a test keeps
it up to date.

## How a config is read

A recipe takes `--config X`, where `X` is a YAML file or the name of a packaged config (`grpo ls` lists
them), and any number of overrides:

| override | effect |
|---|---|
| `batch_size=8` | sets a key |
| `loss.kl_coeff=0.1` | sets an argument of a component |
| `rewards.0.weight=2` | sets a key of a list's item; items count from 0 |
| `optimizer=torch.optim.SGD` | puts another component in the place of one, which keeps its arguments |
| `lr_scheduler=null` | switches an optional part off |
| `~optimizer.betas` | removes a key |

Values are YAML, as in the file; `1e-5` is a number. `${output_dir}/logs` refers to another key and
`${oc.env:HOME}` to an environment variable; a literal `${` is written `\\${`.

A **component** is a mapping with `_component_: package.module.name` and arguments by name. Any class or
function that can be imported will do, also from a file in the current folder; arguments may be components
themselves. A target with `**kwargs` has to check them itself: a static method `check(**kwargs)` that raises
`ConfigError` for what is wrong. Where a target has a `check`, it sees the arguments of the config.

Every key is checked before a model is loaded: unknown or misspelt keys at any depth, missing ones, wrong
types, impossible values. A mistake is one line and exit status 2:

```
$ tune run grpo_full_finetune_single_device --config tiny/full_single_device sead=1
error: sead: unknown key (did you mean 'seed'?)
```

`grpo validate X [key=value ...]` does only this. The resolved config of a run, defaults included, is
`config.yaml` in its `output_dir`, and can be given to `--config` again.
"""

_CROSS_CHECKS = """\
## Checks over several keys

- Exactly one of `num_steps` and `epochs` is set.
- `max_prompt_tokens + max_generated_tokens` fits the model's context: the builder's `max_seq_len`, and
  `max_position_embeddings` in the checkpoint folder's `config.json`, whichever is there and smaller.
- `eval_every_n_steps` needs `eval_dataset`.
- Exactly one of `rewards` has `success: true`, and their names differ.
"""


def reference() -> str:
    """The whole document as Markdown."""
    parts = [_INTRODUCTION]
    schemas: dict[type[Any], list[str]] = {}
    for recipe in RECIPES.values():
        schemas.setdefault(recipe.schema, []).append(recipe.name)
    for schema, recipes in schemas.items():
        parts.append(f"## Keys of {', '.join(f'`{name}`' for name in recipes)}\n\n{_table(schema)}")
    parts.append(
        f"## Keys of an item of `rewards`, beside its component's arguments\n\n{_table(RewardExtras)}"
    )
    parts.append(_CROSS_CHECKS)
    return "\n".join(parts)


def _table(schema: type[Any]) -> str:
    hints = resolved_hints(schema)
    rows = ["| key | value | default | |", "|---|---|---|---|"]
    for field in dataclasses.fields(schema):
        about = field.metadata["about"]
        cells = (f"`{field.name}`", _value(about, hints[field.name]), _default(field), _help(about))
        rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _value(about: Option | Slot, hint: Any) -> str:
    if isinstance(about, Slot):
        kind = "a list of components" if about.many else "a component"
        return kind if hint == Component or about.many else f"{kind} or null"
    if about.pattern_help:
        return about.pattern_help
    limits = [
        f"{words} {limit}"
        for words, limit in (
            ("at least", about.at_least),
            ("more than", about.more_than),
            ("at most", about.at_most),
        )
        if limit is not None
    ]
    return ", ".join([describe(hint), *limits])


def _default(field: dataclasses.Field[Any]) -> str:
    if is_required(field):
        return "required"
    default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
    if isinstance(default, dict):
        return f"`{default['_component_']}`"
    words = {None: "null", True: "true", False: "false"}
    return f"`{words[default] if default is None or isinstance(default, bool) else default}`"


def _help(about: Option | Slot) -> str:
    if isinstance(about, Slot) and about.supplied:
        return f"{about.help}; the recipe passes {', '.join(f'`{name}`' for name in about.supplied)}"
    return about.help


if __name__ == "__main__":
    print(reference(), end="")
