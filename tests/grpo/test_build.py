"""What only shows when parts are put together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from grpo.build import build_device, build_log, check_shares, check_vocabulary, shard_policy
from grpo.config import ConfigError, DistributedConfig, TrainConfig, load_config
from grpo.distributed import Ranks
from grpo.policy import Policy, build_model


class Vocabulary:
    """What the check reads of a tokenizer."""

    def __init__(self, vocab_size: int, pad_id: int = 0) -> None:
        self.vocab_size, self.pad_id = vocab_size, pad_id


def config(*overrides: str) -> TrainConfig:
    return load_config("tiny/full_single_device", overrides, TrainConfig)


@pytest.mark.parametrize(("vocab_size", "rows"), [(104, 112), (112, 112), (128257, 128256)])
def test_a_tokenizer_may_leave_rows_over_or_end_a_little_past_them(vocab_size: int, rows: int) -> None:
    check_vocabulary(Vocabulary(vocab_size), rows, (2,))


def test_a_tokenizer_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="its ids end at 49151, the model's at 111"):
        check_vocabulary(Vocabulary(49152), 112, (2,))
    with pytest.raises(ConfigError, match="pad or stop id 128256"):
        check_vocabulary(Vocabulary(128257), 128256, (128256,))
    with pytest.raises(ConfigError, match="pad or stop id 112"):
        check_vocabulary(Vocabulary(113, pad_id=112), 112, (2,))


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="one device, got 2 processes"):
        build_device(config())


def test_a_run_with_nothing_to_train_leaves_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("as trained")
    build_log(config(f"output_dir={tmp_path}"), 4, 4, (None, None)).close()
    assert (tmp_path / "config.yaml").read_text() == "as trained"


def test_a_logger_that_cannot_write_is_told_in_one_line(tmp_path: Path) -> None:
    node = "{_component_: torchtune.training.metric_logging.DiskLogger, log_dir: /dev/null/x}"
    cfg = config(f"output_dir={tmp_path}", f"metric_logger={node}")
    with pytest.raises(ConfigError, match="metric_logger: .*DiskLogger.*Not a directory"):
        build_log(cfg, 0, 4, (None, None))


def test_a_resume_without_a_checkpoint_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = config(f"output_dir={tmp_path}", "resume_from_checkpoint=true")
    log = build_log(cfg, 0, 4, (None, None))
    log.metrics(1, {"x": 1.0})
    log.close()
    assert f"no checkpoint in {tmp_path}: starting at step 0" in "".join(capsys.readouterr())
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "x": 1.0}


def distributed_config(*overrides: str) -> DistributedConfig:
    return load_config("tiny/full_distributed", overrides, DistributedConfig)


def test_every_rank_needs_a_prompt_in_every_step() -> None:
    cfg = distributed_config("batch_size=2", "gradient_accumulation_steps=2")
    check_shares(cfg, Ranks(size=4))
    with pytest.raises(ConfigError) as caught:
        check_shares(cfg, Ranks(size=5))
    assert str(caught.value) == (
        "batch_size: a step has 4 prompts (batch_size x gradient_accumulation_steps) for 5 ranks; "
        "expected at least one for each"
    )


@pytest.mark.parametrize("names", ["output", "tok_embeddings", "tok_embeddings, output"])
def test_an_embedding_that_is_the_output_too_stays_in_one_unit_with_it(names: str) -> None:
    cfg = distributed_config(f"custom_sharded_layers=[{names}]")
    policy = Policy(build_model(cfg.model, dtype="fp32"), temperature=1.0, device=torch.device("cpu"))
    with pytest.raises(ConfigError) as caught:
        shard_policy(cfg, policy, Ranks())
    assert str(caught.value) == (
        "custom_sharded_layers: grpo.models.tiny uses its embedding as output too, which must stay in one "
        "unit with it; expected null"
    )


def test_a_mesh_that_is_not_all_ranks_names_the_keys() -> None:
    cfg = distributed_config("data_parallel_shard=3", "data_parallel_replicate=2")
    policy = Policy(build_model(cfg.model, dtype="fp32"), temperature=1.0, device=torch.device("cpu"))
    with pytest.raises(ConfigError) as caught:
        shard_policy(cfg, policy, Ranks(size=4))
    assert str(caught.value) == (
        "data_parallel_replicate: 2 copies of 3 shares (data_parallel_shard) are not 4 ranks"
    )
