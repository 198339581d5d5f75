"""Estimates the memory of a rank of the kit's GPT programs, by arithmetic.

For each parameter a rank holds 4 bytes of weight, 8 of Adam's moments, and 4 of gradient after backward. DistributedDataParallel
holds 4 more in the buckets that it sums. FSDP shards the first three, and gathers blocks when it needs them.

For each token, a block keeps 29 numbers per channel until backward: 3 around each of two norms, 7 of attention (queries, keys and
values as projected, queries and keys after rotation, the mixed result), 16 of the gated feed-forward block. They were counted with
torch's saved_tensors_hooks. Where autocast makes bfloat16 of some, they take the space of 17. The C library's heap holds a third
more than is in use. Tensors above its largest M_MMAP_THRESHOLD, 32 MiB, are an exception: they are returned at once. The step's own
peak is 25 numbers per channel, or 4 per vocabulary entry. Both were measured. With --recompute one block is computed at a time. The
heap does not return a sixth of each, because the kept inputs of the blocks lie between its chunks: measured with 3 to 12 blocks.
benchmarks/forecast.py compares all of it with runs.
"""

from __future__ import annotations

from kit.forecast.gpt_program_options import GptTraining

# A Python interpreter with torch 2.13 for CPUs, its libraries and its process group.
_BASE = 347_500_000
_WEIGHT, _MOMENTS, _GRADIENT, _BUCKET = 4, 8, 4, 4
# Numbers per channel and token: kept by a block, in fp32 and under autocast; and by the whole step.
_KEPT, _KEPT_HALF, _STEP, _ENDS = 29.0, 17.0, 25.0, 3.0
_WIDE, _HEAP, _GIVEN_BACK = 16.0, 0.33, 32 << 20
_FP32 = 4
# Temporaries of an update or of a gradient norm, in units of the largest matrix; and blocks that FSDP gathers at one time, with
# their buffers.
_OF_LARGEST, _GATHERED = 4.2, 8.0
# If the heap holds the gathered blocks: in units of one block, and of all blocks.
_OF_BLOCK, _OF_ALL = 17.0, 3.05
# The part of each recomputed block that stays in the heap.
_LEFT = 0.165


def held(program: GptTraining) -> int:
    """Bytes that a rank needs at least: weights, gradients and moments, whatever the batch size."""
    return program.shape.parameters * (_WEIGHT + _MOMENTS + _GRADIENT) // program.shards


def of_rank(program: GptTraining) -> int:
    """Bytes of the rank with the most memory: of its process on the host, or on its GPU."""
    count, shards = program.shape.parameters, program.shards
    always = count * (_WEIGHT + _MOMENTS) / shards
    gradients = count * _GRADIENT / shards
    if program.kind == "ddp":
        always += count * _BUCKET if program.ranks > 1 or not program.on_gpu else 0
    else:
        always += _gathered(program)
    if program.precision != "fp32":
        always += count * 2 / (shards if program.kind == "fsdp" else 1)
    forward = always + activations(program) + (gradients if program.accumulate > 1 else 0)
    update = always + gradients + _OF_LARGEST * _FP32 * _largest(program) / shards
    return int((0 if program.on_gpu else _BASE) + max(forward, update))


def activations(program: GptTraining) -> float:
    """The peak of the bytes that a micro-batch keeps for its backward pass."""
    shape, tokens = program.shape, program.tokens
    kept = _KEPT if program.precision == "fp32" else _KEPT_HALF
    in_heap = kept - (_WIDE if _FP32 * tokens * shape.feed_forward > _GIVEN_BACK else 0)
    # A GPU's allocator has no such fragmentation.
    block = (kept + (0 if program.on_gpu else _HEAP * max(0, in_heap))) * shape.dim
    left = 0 if program.on_gpu else _LEFT * shape.layers
    blocks = shape.dim * shape.layers + block * (1 + left) if program.recompute else block * shape.layers
    rest = max(_STEP * shape.dim, _ENDS * shape.dim + 4 * shape.vocab)
    return _FP32 * tokens * (blocks + rest)


def _gathered(program: GptTraining) -> float:
    """Bytes of the blocks that FSDP gathers, with their buffers.

    Blocks on the heap are placed in different free chunks at each step; the figures were measured after ten steps.
    """
    block = _FP32 * program.shape.layer
    if program.shards == 1 or program.on_gpu or block > _GIVEN_BACK:
        return _GATHERED * block
    in_holes = _OF_BLOCK * block + _OF_ALL * _FP32 * program.shape.parameters
    return in_holes - _GRADIENT * program.shape.parameters / program.shards


def _largest(program: GptTraining) -> int:
    shape = program.shape
    return max(shape.embedding, 2 * shape.dim * shape.feed_forward)
