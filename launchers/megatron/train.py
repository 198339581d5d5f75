"""A GPT of the Llama family on your own text, with megatron.core: tensor, pipeline, context and data parallel, in any layout.

    torchrun --standalone --nproc-per-node=4 train.py --tp 2 --pp 2 --data books/ --steps 1000
    torchrun --nnodes=2 --node-rank=0 --nproc-per-node=8 --master-addr=node1 --master-port=29500 train.py --tp 8 --precision bf16
    srun --ntasks-per-node=4 worker.sh python train.py --tp 2 --distributed-optimizer

The ranks that remain after tp x pp x cp are data parallel. Checkpoints are megatron's distributed ones (.distcp files, common.pt,
metadata.json), which any layout can read. Needs megatron-core (pip install megatron-core==0.16.1) and no Megatron-LM. For `lib`,
options and files see docs/guides/training.md.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import own_state
import torch
import weights
from lib import (
    checkpoint,
    data,
    huggingface,
    loop,
    memory,
    metrics,
    model,
    options,
    process_exit,
    ranks,
    resume,
    stop,
    text,
    without_cuda,
)
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import HAVE_APEX_OR_TE
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from two_halves import TwoHalves, written_by_step

# The format of the distributed optimizer's state. megatron.core 0.16 uses torch's Adam where neither Transformer Engine nor Apex is
# installed. With torch's Adam the format for any layout cannot be read back. The other format fits any number of data parallel
# ranks.
CONTENT = {"distrib_optim_sharding_type": "fully_reshardable" if HAVE_APEX_OR_TE else "dp_reshardable"}

# As Llama has it. The other programs use float32's machine epsilon, 1.2e-7.
NORM_EPS = 1e-5
LLAMA3 = (
    1.0,
    4.0,
    8192.0,
)  # low and high frequency factor and original length, which are fixed in megatron.core
# Options that must be the checkpoint's, besides those of every program: the kind of optimizer and of layers.
EQUAL = ("distributed_optimizer", "transformer_engine", "precision", "weight_decay")

parser = options.parser(__doc__)
options.add_gpt(parser)
layout = parser.add_argument_group("parallel layout")
layout.add_argument(
    "--tp", type=int, default=1, help="tensor parallel ranks; must divide the heads and key-value heads"
)
layout.add_argument("--pp", type=int, default=1, help="pipeline stages; must divide the layers")
layout.add_argument("--cp", type=int, default=1, help="context parallel ranks; needs --transformer-engine")
layout.add_argument("--sequence-parallel", action="store_true", help="split norms too; needs --transformer-engine")
layout.add_argument(
    "--transformer-engine", action="store_true", help="its layers in place of megatron.core's own (GPU)"
)
layout.add_argument(
    "--distributed-optimizer", action="store_true", help="optimizer state in shards over data parallel ranks"
)
parser.add_argument(
    "--kv-heads", type=int, help="key-value heads (grouped-query attention); default: as many as --heads"
)
parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
args = options.parse(parser)


def begun(vocabulary: int) -> model.GPTShape:
    """The shape of the model: that of --init-from, else the one of --layers, --heads, --kv-heads and --dim.

    --init-from also overwrites these four options. vocabulary: the size of the data's vocabulary.
    """
    if args.init_from is None:
        size = {"layers": args.layers, "heads": args.heads, "dim": args.dim, "context": args.context}
        return model.GPTShape(**size, vocabulary=vocabulary, kv_heads=args.kv_heads, norm_eps=NORM_EPS)
    shape = huggingface.shape(args.init_from, context=args.context, vocabulary=vocabulary)
    if shape.rope_scaling is not None and shape.rope_scaling[1:] != LLAMA3:
        raise SystemExit(f"{args.init_from}: megatron.core takes Llama 3's scaled positions only with {LLAMA3}.")
    args.layers, args.heads, args.kv_heads, args.dim = shape.layers, shape.heads, shape.keys, shape.dim
    return shape


def check_layout(world_size: int) -> int:
    """The number of data parallel ranks. Where the layout cannot work, the program ends with an error that shows the numbers."""
    # tp x pp x cp ranks hold one copy of the model. Each message names the numbers that do not divide.
    # Grouped-query attention: several query heads share a key-value head. By default each has its own.
    model_parallel, kv_heads = args.tp * args.pp * args.cp, args.kv_heads or args.heads
    faults = [
        f"{what} {whole} cannot be divided by {by} {part}"
        for what, whole, by, part in (
            ("world size", world_size, "tp x pp x cp =", model_parallel),
            ("--heads", args.heads, "--tp", args.tp),
            ("--kv-heads", kv_heads, "--tp", args.tp),
            ("--heads", args.heads, "--kv-heads", kv_heads),
            ("--layers", args.layers, "--pp", args.pp),
            ("--dim", args.dim, "2 x --heads =", 2 * args.heads),
            ("--context", args.context, "tp (--sequence-parallel)", args.tp if args.sequence_parallel else 1),
        )
        if whole % part
    ]
    if args.sequence_parallel and args.tp == 1:
        faults.append("--sequence-parallel needs --tp 2 or more")
    if (args.sequence_parallel or args.cp > 1) and not args.transformer_engine:
        faults.append("--sequence-parallel and --cp need --transformer-engine")
    if args.attend == "within" and (args.transformer_engine or args.cp > 1):
        faults.append("--attend within is for megatron.core's own layers")
    if faults:
        raise SystemExit("; ".join(faults) + ".")
    return world_size // model_parallel


def make_model(world: ranks.Ranks, shape: model.GPTShape) -> DistributedDataParallel:
    """This rank's stage and shard of the model, wrapped for data parallel training."""
    half = args.precision == "bf16"
    on_gpu = world.device.type == "cuda"
    # One configuration for all ranks. Megatron cuts it: a rank builds only its layers (--pp) and its slices of
    # matrices (--tp).
    config = TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.dim,
        ffn_hidden_size=shape.wide,
        num_attention_heads=shape.heads,
        # Key-value heads, and the channels of each head.
        num_query_groups=shape.keys,
        kv_channels=shape.each,
        add_qkv_bias=shape.qkv_bias,
        qk_layernorm=shape.head_norms,
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
        context_parallel_size=args.cp,
        sequence_parallel=args.sequence_parallel,
        # The Llama family: RMSNorm, gated SiLU, rotary positions, no biases, no dropout.
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_eps,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        # GPT-2's standard deviation for drawing matrices.
        init_method_std=0.02,
        # Weights are drawn whole on the CPU and then sharded, so that they are the same for every --tp.
        use_cpu_initialization=True,
        bf16=half,
        # Activations travel between pipeline stages in this type.
        pipeline_dtype=torch.bfloat16 if half else torch.float32,
        # These fused kernels need Apex, Transformer Engine or a GPU. The program also runs without.
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
    )
    # After the last micro-batch: finishes the data parallel reduction, and sums the gradients that several ranks compute,
    # such as those of norms under sequence parallelism.
    config.finalize_model_grads_func = finalize_model_grads
    torch.manual_seed(args.seed + 1000 * parallel_state.get_pipeline_model_parallel_rank())  # stages differ
    if args.transformer_engine:
        layer = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=shape.head_norms)
    else:
        layer = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=shape.head_norms)
    # Here and below: (T, B, C) activations, T tokens, B sequences, C = hidden_size; under sequence parallelism T / tp
    # of them.
    net = GPTModel(
        config,
        layer,
        vocab_size=shape.vocabulary,
        max_sequence_length=shape.context,
        # The first stage has the embedding; the last one has the final norm, the output layer and the loss.
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        rotary_base=shape.rope_base,
        rope_scaling=shape.rope_scaling is not None,
        rope_scaling_factor=shape.rope_scaling[0] if shape.rope_scaling else 8.0,
    )
    if args.init_from:
        weights.put(net, args.init_from, shape)
    if on_gpu:
        net.cuda()
    if half:
        net.bfloat16()
    # Megatron's DDP, not torch's: it knows which parameters each rank of a layout holds, and whose gradients to
    # average.
    ddp_config = DistributedDataParallelConfig(
        use_distributed_optimizer=args.distributed_optimizer,
        # Gradients are reduced while others are computed, in the last micro-batch's backward pass: hence no_sync in the others.
        overlap_grad_reduce=True,
        # In bf16 a sum over many ranks loses small gradients.
        grad_reduce_in_fp32=True,
    )
    wrapped = DistributedDataParallel(config, ddp_config, net)
    config.no_sync_func = wrapped.no_sync
    return wrapped


def forward_step(
    batches: Iterator[list[torch.Tensor]], net: torch.nn.Module, apart: int | None = None
) -> tuple[torch.Tensor, Any]:
    """Run one micro-batch through this stage. Megatron's schedules call this, and on the last stage the loss function that it
    returns.

    apart: the token that ends a document, where no token may attend to another document; else None.
    """
    device = torch.cuda.current_device()
    # (B, T) each: B windows of a micro-batch, T tokens of context. A test adds weights (B,): 0 for padding windows.
    tokens, targets, *weights = (tensor.to(device, non_blocking=True) for tensor in next(batches))
    # (B, T), the same 0 to T - 1 in each row
    positions = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
    # Megatron's masks are True where a token is not seen. Without a mask, its layers use the causal one.
    mask = None if apart is None else ~model.within(tokens, apart)
    # On the last stage the loss of each token, (B, T). On the others the activations, (T, B, C) in Megatron's order of dimensions,
    # which the schedule sends to the next stage.
    output = net(tokens, positions, mask, labels=targets)

    def summed(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of a test: the sum over the windows that count."""
        # losses (B, T) -> (B,), the mean over each window; then the sum over the windows
        loss = (losses.float().mean(1).double() * weights[0]).sum()
        return loss, {"loss": loss.detach().clone()}

    def mean(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = losses.float().mean()
        return loss, {"loss": loss.detach().clone()}  # the schedule scales the other tensor in place

    return output, summed if weights else mean


def load(
    resume_from: Path,
    net: DistributedDataParallel,
    optimizer: MegatronOptimizer,
    sharded_state: Callable[..., dict[str, Any]],
) -> None:
    """Fill model and optimizer from a checkpoint of this or another layout."""
    if args.distributed_optimizer:  # a step that changes nothing makes the tensors that the load fills
        net.zero_grad_buffer()
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        optimizer.step()
    # Each tensor of the state tells which part of the whole this rank holds. So files of another layout can fill it.
    state = dist_checkpointing.load(sharded_state(loading=True), str(resume_from))
    net.module.load_state_dict(state["model"])
    with torch.no_grad():  # the load copies into the weights
        optimizer.load_state_dict(state["optimizer"])
    if args.distributed_optimizer and not HAVE_APEX_OR_TE:
        # The load leaves torch's Adam with the step count of the empty step above, in one tensor that all parameters
        # share, so that each parameter would count it up.
        for one in optimizer.chained_optimizers:
            for moments in one.optimizer.state.values():
                moments["step"] = torch.tensor(float(checkpoint.marker(resume_from)["step"]))


def train(world: ranks.Ranks) -> int:  # noqa: PLR0915 - one job, read from top to bottom
    """Train to the last step, or until a stop is requested. Returns the exit code."""
    if args.init_from:
        begun(0)  # sets the model's own shape, with which the layout is checked
    # Before Megatron makes its groups: a layout that cannot work ends here, and not in a collective that waits.
    data_parallel = check_layout(world.ddp_world_size)
    log = metrics.MetricsFile(args.run_dir, world)
    requests = stop.StopRequest(args.run_dir, world)
    profile = metrics.ProfilerTrace(args.run_dir, world, args.profile_steps, args.profile_ranks)
    # Makes the process groups. Tensor ranks are neighbours, on one node where possible: they all-reduce activations in
    # every layer. Pipeline stages only send activations to the next stage, and data parallel ranks all-reduce gradients
    # once a step.
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tp, pipeline_model_parallel_size=args.pp, context_parallel_size=args.cp
    )
    tensor_parallel.model_parallel_cuda_manual_seed(
        args.seed, inference_rng_tracker=True
    )  # no dropout needs no generators
    log.say(
        f"{world.ddp_world_size} ranks on {world.nodes} nodes, {world.backend}: tensor {args.tp} x pipeline {args.pp} x "
        f"context {args.cp} x data {data_parallel}, seed {args.seed}"
    )

    # ---- data: the ranks of one model copy read the same data ----

    # The tensor, pipeline and context ranks of one model copy count as one rank of the data.
    copy = dataclasses.replace(world, ddp_rank=parallel_state.get_data_parallel_rank(), ddp_world_size=data_parallel)
    # Every stage reads the data: a middle stage needs the tokens' shape, and their mask.
    corpus = text.opened(args, world, log)
    train_set, test_set = corpus.train, corpus.test
    # Sequences of one micro-batch on one model copy.
    micro_batch = ranks.share("--batch-size", args.batch_size, copy, args.accumulate)

    # ---- model and optimizer ----

    shape = begun(corpus.vocabulary)
    net = make_model(world, shape)
    # With pipeline stages this is the 1F1B schedule: each stage alternates a forward and a backward pass, so that it keeps
    # the activations of few micro-batches.
    run_micro_batches = get_forward_backward_func()
    # AdamW: weight decay apart from the gradient. With --distributed-optimizer each data parallel rank keeps 1 /
    # data_parallel of its moments.
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=args.lr,
            # 0.95, as GPT-3 and Llama use.
            adam_beta2=0.95,
            weight_decay=args.weight_decay,
            clip_grad=args.clip,
            bf16=args.precision == "bf16",
            params_dtype=torch.bfloat16 if args.precision == "bf16" else torch.float32,
            use_distributed_optimizer=args.distributed_optimizer,
        ),
        [net],
    )
    # lr_factor(step) is between 0 and 1; the learning rate is --lr times this factor.
    lr_factor = options.schedule(args, args.steps)

    # ---- resume ----

    told = resume.told("megatron/train.py", args, data=corpus.told)
    strategy = TwoHalves()
    position = {"step": 0, "samples": 0}  # optimizer steps, and sequences over all data parallel ranks
    in_memory = memory.InMemory(
        args, lambda: (own_state.taken(net, optimizer) | checkpoint.rank_state(world, position), None)
    )
    checkpoints, resume_from = resume.begun(args, world, told, log, equal=EQUAL, in_memory=in_memory)

    def sharded_state(*, loading: bool = False) -> dict[str, Any]:
        # No data is moved here: the result names each tensor of this rank and its place in the whole model.
        weights = net.module.sharded_state_dict()
        return {
            "model": weights,
            "optimizer": optimizer.sharded_state_dict(weights, is_loading=loading, metadata=CONTENT),
        }

    if found := in_memory.found:
        own_state.put(found.state, net, optimizer)
        position = found.state["at"]
        checkpoint.set_rng_state(found.state["rng"])
        resume.say(log, None, position["step"])
    elif resume_from:
        # Weights and moments in any layout; then the position and, in the same layout, the random state of this rank.
        load(resume_from, net, optimizer, sharded_state)
        position = checkpoint.read_rank(resume_from, world, seed=args.seed)
        resume.say(log, resume_from, position["step"])

    def save(*, last: bool = False) -> None:
        def start(folder: Path) -> checkpoint.Finish:
            dist_checkpointing.save(
                sharded_state(),
                str(folder),
                strategy,
                # Every shard must be written by exactly one rank. The layout stays the same during a run, so
                # one check is enough: it is a collective over all ranks.
                validate_access_integrity=not strategy.is_checked,
                async_sharded_save=True,
                content_metadata=CONTENT,
            )
            writes = strategy.writes(folder, checkpoints, written_by_step(net, optimizer))
            mine = checkpoint.rank_state(world, position)

            def finish() -> None:
                writes()
                # Only after Megatron has begun: it warns about a folder that already has a file of a faster rank.
                checkpoints.write_rank(folder, mine)
                checkpoint.write_model(folder, world, shape.described("megatron-gpt"))

            return finish

        checkpoints.save(position["step"], start, last=last)

    def loss_of_all(losses: list[dict[str, torch.Tensor]]) -> float:
        """This rank's loss over micro-batches, scaled so that the mean over all ranks is the loss: only last stages have one."""
        return sum(part["loss"].item() for part in losses) / len(losses) * args.pp if losses else 0.0

    # ---- train ----

    where = {"seed": args.seed, "samples": position["samples"], "accumulate": args.accumulate, "workers": args.workers}
    # Without end, epoch after epoch. `samples` is what earlier starts have read, so that a resumed run reads no
    # sequence twice.
    batches = data.batches(train_set, micro_batch, copy, **where)
    parameters, flops_per_token = counted(shape)
    # Tokens of one optimizer step, over all model copies: sequences x tokens of each.
    speed = metrics.Speed(args.batch_size * args.context, flops_per_token, world, args.precision)
    # What Megatron's schedules must know to allocate the activations that a stage receives: (T, micro-batch, C).
    schedule = {"model": [net], "seq_length": args.context, "micro_batch_size": micro_batch}
    log.started("megatron/train.py", world, speed, parameters=parameters, seed=args.seed)

    def test() -> float:
        net.eval()
        count = min(args.test_windows, len(test_set))
        # The ranks of one model copy get the same windows; each copy gets others.
        # A list, because the schedule must know the number of micro-batches before the first.
        tests = [*data.fixed(test_set, count, micro_batch, copy)]
        with torch.no_grad():
            losses = run_micro_batches(
                forward_step_func=partial(forward_step, apart=corpus.apart),
                data_iterator=iter(tests),
                num_microbatches=len(tests),
                forward_only=True,
                **schedule,
            )
        net.train()
        # Every rank of a last stage has the sum over the windows of its model copy.
        (summed,) = ranks.total(sum(part["loss"].item() for part in losses), world=world)
        # The tp x cp ranks of a copy's last stage add the same sum. Their number is world size / (data parallel x pp).
        return summed * data_parallel * args.pp / world.ddp_world_size / count

    steps = loop.Steps(
        args,
        world,
        log,
        requests,
        profile,
        checkpoints,
        save,
        test,
        position=position,
        samples=args.batch_size,
        speed=speed,
        in_memory=in_memory,
    )
    while steps.go_on():
        net.zero_grad_buffer()
        # Megatron's DDP keeps all gradients in one buffer, so that it can reduce them in large pieces. With bf16 the optimizer
        # also has float32 copies of the weights, with their own gradients.
        optimizer.zero_grad()
        # All micro-batches of a step, forward and backward, through all pipeline stages.
        losses = run_micro_batches(
            forward_step_func=partial(forward_step, apart=corpus.apart),
            data_iterator=batches,
            num_microbatches=args.accumulate,
            forward_only=False,
            **schedule,
        )
        # Megatron's groups name the share of the weight decay that each gets (wd_mult): 0 for norms and biases.
        lr = loop.set_pace(optimizer, lr=args.lr * lr_factor(position["step"]), weight_decay=args.weight_decay)
        # Clips the gradients by their norm over all ranks, and updates the weights.
        _, norm, _ = optimizer.step()
        # The losses stay on the GPU until a step is logged: reading them would wait for the GPU.
        steps.done(partial(loss_of_all, losses), lr=lr, gradient_norm=norm)

    # ---- the end ----

    return steps.end()


def counted(shape: model.GPTShape) -> tuple[int, float]:
    """Weights of the whole model; its operations per token, forward and backward: PaLM's 6 N + 12 L H Q T (appendix B).

    N leaves out the embedding, because it is a table and not a matrix product.
    """
    with torch.device("meta"):
        net = model.GPT(shape)
    return sum(one.numel() for one in net.parameters()), net.flops_per_token()


def main() -> int:
    """Train in the process group. Returns the exit code."""
    # Megatron calls CUDA by name. Without a GPU, lib/without_cuda.py answers these calls while the program runs.
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(ranks.started(args.device))
        if world.device.type == "cpu":
            stack.enter_context(without_cuda.pretended())
        return train(world)


if __name__ == "__main__":
    process_exit.exit_with(main)
