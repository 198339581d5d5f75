"""python megatron_logits.py CHECKPOINT OUT HEADS KV_HEADS: logits of a checkpoint by megatron.core itself, on one rank.

OUT gets the tokens and the logits, [batch, length] and [batch, length, vocabulary], in float32.
"""

import sys

import torch
from lib import without_cuda
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig

checkpoint, out, heads, kv_heads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.distributed.init_process_group("gloo", init_method=f"file://{out}.rendezvous", rank=0, world_size=1)
with without_cuda.pretended(), torch.no_grad():
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1, inference_rng_tracker=True)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        ffn_hidden_size=256,
        num_attention_heads=heads,
        num_query_groups=kv_heads,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=True,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
    )
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    net = GPTModel(config, spec, vocab_size=256, max_sequence_length=64, position_embedding_type="rope").eval()
    net.load_state_dict(dist_checkpointing.load({"model": net.sharded_state_dict()}, checkpoint)["model"])
    tokens = torch.randint(256, (3, 64), generator=torch.Generator().manual_seed(5))
    positions = torch.arange(64).expand_as(tokens)
    torch.save({"tokens": tokens, "logits": net(tokens, positions, None).float()}, out)
torch.distributed.destroy_process_group()
