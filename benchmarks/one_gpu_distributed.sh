#!/usr/bin/env bash
# The distributed recipe on one GPU (NCCL, one rank): SmolLM2 135M, all weights, bf16, compile off and on.
# Prints step times, tokens per second and peak memory, and writes every step's metrics.
#
#   bash benchmarks/one_gpu_distributed.sh models/SmolLM2-135M-Instruct out.json
#
# DEVICE=cpu tries the script without a GPU, on a batch that a CPU can carry.
set -euo pipefail
model=$1
output=$2
device=${DEVICE:-cuda}
batch="batch_size=16 grpo_samples=16 forward_batch_size=256 micro_batch_size=32 max_generated_tokens=128"
steps="--steps 10 --skip 3 --repeats 2"
if [ "$device" = cpu ]; then
    batch="batch_size=2 grpo_samples=2 forward_batch_size=4 micro_batch_size=4 max_generated_tokens=8"
    steps="--steps 2 --skip 1 --repeats 1"
fi
# shellcheck disable=SC2086  # lists of words
"${PYTHON:-python3}" "$(dirname "$0")/step_times.py" --config smollm2/135M_grpo_full_distributed \
    --nproc_per_node 1 --output "$output" $steps \
    --each device="$device" dtype=bf16 checkpointer.checkpoint_dir="$model" $batch -- \
    compile=false compile=true
