"""Estimates the memory of a rank of the kit's GPT programs, by arithmetic.

Of each parameter a rank holds 4 bytes of weight, 8 of Adam's moments, and after backward 4 of gradient; DistributedDataParallel
holds 4 more in the buckets that it sums. FSDP deals the first three out, and gathers blocks as it goes.

Of each token a block keeps 29 numbers for each channel until backward: 3 around each of two norms, 7 of attention (queries, keys
and values as projected, the first two as turned, what is mixed), 16 of the gated block. They were counted with torch's
saved_tensors_hooks, 17 of their size where autocast makes bfloat16 of some. The C library's heap holds a third more than is in use
(but for tensors above its largest M_MMAP_THRESHOLD, 32 MiB, which are given back at once), and the step's own peak is 25 numbers a
channel or 4 for each word: both measured. benchmarks/forecast.py compares all of it with runs.
"""

from __future__ import annotations

from kit.forecast.gpt_program_options import GptTraining

# An interpreter with torch 2.13 for CPUs, its libraries and its process group.
_BASE = 347_500_000
_WEIGHT, _MOMENTS, _GRADIENT, _BUCKET = 4, 8, 4, 4
# For each channel and token: kept by a block, by the whole step beside them.
_KEPT, _KEPT_HALF, _STEP, _ENDS = 29.0, 17.0, 25.0, 3.0
_WIDE, _HEAP, _GIVEN_BACK = 16.0, 0.33, 32 << 20
_FP32 = 4
# Temporaries of an update or a gradient's norm, of the size of the largest matrix; blocks gathered by FSDP at one time, with the
# buffers that they come from and go to.
_OF_LARGEST, _GATHERED = 4.2, 8.0
# Where the heap holds the gathered blocks: of one of them, and of all.
_OF_BLOCK, _OF_ALL = 17.0, 3.05


def held(program: GptTraining) -> int:
    """Bytes that a rank cannot do without: weights, gradients and moments. Less is not possible, whatever the batch."""
    return program.shape.parameters * (_WEIGHT + _MOMENTS + _GRADIENT) // program.shards


def of_rank(program: GptTraining) -> int:
    """Bytes of the rank with the most: of its process on the host, or on its GPU."""
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
    """Bytes that a micro-batch keeps for its backward pass, at their most."""
    shape, tokens = program.shape, program.tokens
    kept = _KEPT if program.precision == "fp32" else _KEPT_HALF
    in_heap = kept - (_WIDE if _FP32 * tokens * shape.feed_forward > _GIVEN_BACK else 0)
    # A GPU's allocator has no such holes.
    block = (kept + (0 if program.on_gpu else _HEAP * max(0, in_heap))) * shape.dim
    blocks = shape.dim * shape.layers + block if program.recompute else block * shape.layers
    rest = max(_STEP * shape.dim, _ENDS * shape.dim + 4 * shape.vocab)
    return _FP32 * tokens * (blocks + rest)


def _gathered(program: GptTraining) -> float:
    """Bytes of the blocks that FSDP gathers, with the buffers that they come from and go to.

    Those that the heap holds come to lie in other holes with each step: measured after ten.
    """
    block = _FP32 * program.shape.layer
    if program.shards == 1 or program.on_gpu or block > _GIVEN_BACK:
        return _GATHERED * block
    in_holes = _OF_BLOCK * block + _OF_ALL * _FP32 * program.shape.parameters
    return in_holes - _GRADIENT * program.shape.parameters / program.shards


def _largest(program: GptTraining) -> int:
    shape = program.shape
    return max(shape.embedding, 2 * shape.dim * shape.feed_forward)
