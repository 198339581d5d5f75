"""The ladder of tables/models.toml as flavours of TorchTitan's Llama: --model.flavor 160m, 1b, 6.9b.

Every rank imports it, because base.toml names it in experimental.custom_import and job.toml puts this folder on PYTHONPATH.
"""

from torchtitan.models.llama3 import llama3_args
from torchtitan.models.llama3.model.args import TransformerModelArgs

# layers, width, heads, words
SHAPES = {"160m": (12, 768, 12, 50304), "1b": (16, 2048, 8, 50304), "6.9b": (32, 4096, 32, 50432)}

for name, (layers, width, heads, words) in SHAPES.items():
    llama3_args[name] = TransformerModelArgs(dim=width, n_layers=layers, n_heads=heads, vocab_size=words)
