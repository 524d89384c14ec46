"""Step checkpoints: atomic, by number, whole, and exact."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from torch import nn

from grpo.checkpoint import StepCheckpointer, step_folders
from grpo.checkpoint.files import MANIFEST, write_folder
from grpo.config import ConfigError
from grpo.models import lora_tiny, tiny
from grpo.policy import load_model

TINY = {"_component_": "grpo.models.tiny"}
LORA = {"_component_": "grpo.models.lora_tiny", "lora_attn_modules": ["q_proj", "v_proj"], "lora_rank": 2}


def load(component: dict) -> nn.Module:
    return load_model(component, "tiny", device=torch.device("cpu"), dtype="fp32")


class Counter:
    """The smallest thing with a state."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def checkpointer(folder: Path, **settings: object) -> StepCheckpointer:
    return StepCheckpointer("tiny", output_dir=str(folder), **settings)


def move(model: nn.Module, seed: int = 0) -> None:
    """Change what is trained, as updates would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("component", [TINY, LORA], ids=["full", "lora"])
def test_weights_and_states_come_back_bit_for_bit(tmp_path: Path, component: dict) -> None:
    model = load(component)
    move(model)
    checkpointer(tmp_path).save(7, model, {"counter": Counter(3)}, "seed: 0\n")
    other, counter = load(component), Counter()
    assert checkpointer(tmp_path).resume(other, {"counter": counter}) == 7
    assert counter.value == 3
    for (name, want), (_, got) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(want, got), name
    assert (tmp_path / "step_7" / "config.yaml").read_text() == "seed: 0\n"


def test_res_10_the_latest_is_the_largest_complete_number(tmp_path: Path) -> None:
    for name in ("step_9", "step_10", "step_100", "step_100.tmp", "best", "step_200"):
        (tmp_path / name).mkdir()
        if name != "step_200":  # no manifest: not complete
            (tmp_path / name / MANIFEST).write_text("{}")
    assert checkpointer(tmp_path).latest() == tmp_path / "step_100"
    assert list(step_folders(tmp_path)) == [9, 10, 100]


@pytest.mark.parametrize("dies_at", ["write", "manifest", "rename"])
def test_res_09_a_write_that_dies_leaves_the_earlier_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    model = load(TINY)
    one = checkpointer(tmp_path)
    one.save(10, model, {"counter": Counter(1)}, "")

    class Killed(BaseException):
        """As sudden as a SIGKILL: nothing catches it."""

    def die(*_: object, **__: object) -> None:
        raise Killed

    target = {
        "write": "grpo.checkpoint.step_checkpointer.torch.save",
        "manifest": "grpo.checkpoint.files.json.dumps",
        "rename": "pathlib.Path.rename",
    }[dies_at]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(target, die)
        one.save(20, model, {"counter": Counter(2)}, "")
    counter = Counter()
    assert checkpointer(tmp_path).resume(load(TINY), {"counter": counter}) == 10
    assert counter.value == 1
    one.save(20, model, {"counter": Counter(2)}, "")  # over what the killed write left
    assert checkpointer(tmp_path).resume(load(TINY), {"counter": counter}) == 20


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
@pytest.mark.parametrize("name", ["model.safetensors", "training_state.pt"])
def test_damaged_files_are_named_and_refused(tmp_path: Path, harm: str, name: str) -> None:
    checkpointer(tmp_path).save(1, load(TINY), {"counter": Counter()}, "")
    path = tmp_path / "step_1" / name
    content = bytearray(path.read_bytes())
    if harm == "truncate":
        path.write_bytes(content[:-1])
    elif harm == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    with pytest.raises(ConfigError, match=name):
        checkpointer(tmp_path).resume(load(TINY), {"counter": Counter()})


def test_old_checkpoints_go_and_the_newest_stay(tmp_path: Path) -> None:
    one, model = checkpointer(tmp_path, keep_last_n_checkpoints=2), load(TINY)
    for step in (2, 9, 10, 11):
        one.save(step, model, {}, "")
    assert list(step_folders(tmp_path)) == [10, 11]


def test_a_deletion_that_dies_leaves_no_half_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, model = checkpointer(tmp_path, keep_last_n_checkpoints=1), load(TINY)
    one.save(1, model, {}, "")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("grpo.checkpoint.files.shutil.rmtree", _interrupt)
        one.save(2, model, {}, "")
    assert list(step_folders(tmp_path)) == [2]
    one.save(3, model, {}, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_3"]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_res_08_the_optimizers_moments_come_back(tmp_path: Path) -> None:
    def make() -> tuple[nn.Parameter, torch.optim.Optimizer]:
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        return weight, torch.optim.Adam([weight], lr=0.1, betas=(0.9, 0.999), eps=1e-8)

    def step(weight: nn.Parameter, optimizer: torch.optim.Optimizer, gradient: float) -> float:
        before = weight.item()
        weight.grad = torch.full((1,), gradient, dtype=torch.float64)
        optimizer.step()
        return weight.item() - before

    weight, optimizer = make()
    step(weight, optimizer, 1.0)
    step(weight, optimizer, 1.0)
    model = load(TINY)
    checkpointer(tmp_path).save(2, model, {"optimizer": optimizer}, "")
    weight, optimizer = make()
    checkpointer(tmp_path).resume(model, {"optimizer": optimizer})
    assert step(weight, optimizer, -1.0) == pytest.approx(-0.0261993, abs=1e-6)


def test_res_15_a_step_at_rate_0_leaves_the_loaded_adapter(tmp_path: Path) -> None:
    model = load(LORA)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_b" in name:
                parameter.fill_(0.5)
    checkpointer(tmp_path).save(1, model, {}, "")
    resumed = load(LORA)
    optimizer = torch.optim.AdamW([p for p in resumed.parameters() if p.requires_grad], lr=0.0)
    checkpointer(tmp_path).resume(resumed, {})
    resumed(torch.tensor([[4, 5, 6]])).sum().backward()
    optimizer.step()
    assert all((p == 0.5).all() for name, p in resumed.named_parameters() if "lora_b" in name)


def test_global_generators_come_back(tmp_path: Path) -> None:
    model = load(TINY)
    torch.manual_seed(5)
    random.seed(5)
    checkpointer(tmp_path).save(1, model, {}, "")
    want = (torch.rand(3).tolist(), random.random())
    torch.manual_seed(0)
    random.seed(0)
    checkpointer(tmp_path).resume(model, {})
    assert (torch.rand(3).tolist(), random.random()) == want


def test_without_a_checkpoint_a_resume_starts_at_step_0(tmp_path: Path) -> None:
    assert checkpointer(tmp_path).resume(load(TINY), {}) == 0


def test_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    checkpointer(tmp_path).save(1, load(TINY), {"counter": Counter()}, "")
    with pytest.raises(ConfigError, match="full weights"):
        checkpointer(tmp_path).resume(load(LORA), {"counter": Counter()})
    with pytest.raises(ConfigError, match="differ in engine"):
        checkpointer(tmp_path).resume(load(TINY), {"counter": Counter(), "engine": Counter()})


def test_another_adapter_is_refused(tmp_path: Path) -> None:
    checkpointer(tmp_path).save(1, load(LORA), {}, "")
    with pytest.raises(ConfigError, match="lora_a"):
        checkpointer(tmp_path).resume(load(LORA | {"lora_rank": 4}), {})
    with pytest.raises(ConfigError, match="differ, first in"):
        checkpointer(tmp_path).resume(load(LORA | {"lora_attn_modules": ["q_proj"]}), {})


def test_a_new_run_does_not_write_over_another(tmp_path: Path) -> None:
    one = checkpointer(tmp_path)
    one.refuse_to_overwrite()
    one.save(3, load(TINY), {}, "")
    with pytest.raises(ConfigError, match="already holds step_3"):
        one.refuse_to_overwrite()


@pytest.mark.parametrize("name", ["metrics.jsonl", "step_2/notes.txt"])
def test_a_new_run_does_not_write_over_what_has_no_checkpoint_yet(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match=f"already holds {name.partition('/')[0]}"):
        checkpointer(tmp_path).refuse_to_overwrite()
    assert path.read_text() == "{}\n"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"checkpoint_dir": "nowhere"}, "nowhere"),
        ({"checkpoint_dir": "tiny", "keep_last_n_checkpoints": 0}, "at least 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        StepCheckpointer.check(**settings)


def test_the_manifest_lists_every_file(tmp_path: Path) -> None:
    write_folder(tmp_path / "step_1", lambda folder: (folder / "a").write_text("abc"), {"step": 1})
    manifest = json.loads((tmp_path / "step_1" / MANIFEST).read_text())
    assert manifest["step"] == 1 and manifest["files"]["a"]["bytes"] == 3
    assert len(manifest["files"]["a"]["sha256"]) == 64


def test_builders_under_test_are_the_packages_own() -> None:
    assert sum(p.numel() for p in tiny().parameters()) < 1_000_000
    assert any("lora_a" in name for name, _ in lora_tiny(["q_proj"]).named_parameters())
