"""A byte-level GPT of the Llama family on megatron.core: tensor, pipeline, context and data parallel, in any layout.

    torchrun --standalone --nproc-per-node=4 train.py --tp 2 --pp 2 --data books/ --steps 1000
    torchrun --nnodes=2 --node-rank=0 --nproc-per-node=8 --master-addr=node1 --master-port=29500 train.py --tp 8 --precision bf16
    srun --ntasks-per-node=4 worker.sh python train.py --tp 2 --distributed-optimizer

The ranks that remain after tp x pp x cp are data parallel. Checkpoints are megatron's distributed ones (.distcp files, common.pt,
metadata.json); any layout reads them back. Needs megatron-core (pip install megatron-core==0.16.1) and no Megatron-LM. `lib`,
options and files: docs/training.md.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lib import checkpoint, data, metrics, options, ranks, stop, without_cuda
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

parser = options.parser(__doc__)
options.add_gpt(parser)
layout = parser.add_argument_group("parallel layout")
layout.add_argument("--tp", type=int, default=1, help="tensor parallel ranks; must divide the heads and key-value heads")
layout.add_argument("--pp", type=int, default=1, help="pipeline stages; must divide the layers")
layout.add_argument("--cp", type=int, default=1, help="context parallel ranks (GPU with Transformer Engine only)")
layout.add_argument("--sequence-parallel", action="store_true", help="with --tp: norms and dropout split by sequence")
layout.add_argument("--distributed-optimizer", action="store_true", help="optimizer state in shards over data parallel ranks")
parser.add_argument("--kv-heads", type=int, help="key-value heads (grouped-query attention); default: as many as --heads")
parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
args = options.parse(parser)


def check_layout(world_size: int) -> int:
    """The number of data parallel ranks; a layout that cannot be is refused with its numbers."""
    model_parallel, kv_heads = args.tp * args.pp * args.cp, args.kv_heads or args.heads
    faults = [
        f"{what} {whole} cannot be divided by {by} {part}"
        for what, whole, by, part in (
            ("world size", world_size, "tp x pp x cp =", model_parallel),
            ("--heads", args.heads, "--tp", args.tp),
            ("--kv-heads", kv_heads, "--tp", args.tp),
            ("--heads", args.heads, "--kv-heads", kv_heads),
            ("--layers", args.layers, "--pp", args.pp),
            ("--context", args.context, "tp (--sequence-parallel)", args.tp if args.sequence_parallel else 1),
        )
        if whole % part
    ]
    if args.sequence_parallel and args.tp == 1:
        faults.append("--sequence-parallel needs --tp 2 or more")
    if faults:
        raise SystemExit("; ".join(faults) + ".")
    return world_size // model_parallel


def make_model(here: ranks.Ranks) -> DistributedDataParallel:
    """This rank's stage and shard of the model, wrapped for data parallel training."""
    half = args.precision == "bf16"
    on_gpu = here.device.type == "cuda"
    config = TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.dim,
        ffn_hidden_size=4 * args.dim,
        num_attention_heads=args.heads,
        num_query_groups=args.kv_heads or args.heads,
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
        context_parallel_size=args.cp,
        sequence_parallel=args.sequence_parallel,
        # The Llama family: RMSNorm, gated SiLU, rotary positions, no biases, no dropout.
        normalization="RMSNorm",
        layernorm_epsilon=1e-5,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        init_method_std=0.02,
        # Weights are drawn whole on the CPU and cut, so that they are the same in every layout.
        use_cpu_initialization=True,
        bf16=half,
        pipeline_dtype=torch.bfloat16 if half else torch.float32,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
    )
    config.finalize_model_grads_func = finalize_model_grads
    torch.manual_seed(args.seed)
    net = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=256,
        max_sequence_length=args.context,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
    )
    if on_gpu:
        net.cuda()
    if half:
        net.bfloat16()
    ddp_config = DistributedDataParallelConfig(
        use_distributed_optimizer=args.distributed_optimizer, overlap_grad_reduce=False, grad_reduce_in_fp32=True
    )
    return DistributedDataParallel(config, ddp_config, net)


def forward_step(batches: Iterator[list[torch.Tensor]], net: torch.nn.Module) -> tuple[torch.Tensor, Any]:
    """One micro-batch through this stage; megatron's schedules call it, and the loss function on the last stage."""
    device = torch.cuda.current_device()
    tokens, targets = (tensor.to(device, non_blocking=True) for tensor in next(batches))
    positions = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
    output = net(tokens, positions, None, labels=targets)

    def mean(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = losses.float().mean()
        return loss, {"loss": loss.detach()}

    return output, mean
