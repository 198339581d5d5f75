"""Tokenizes text once, in several processes, into memory-mapped shards that every GPT program reads. Needs no torch.

    python prepare.py books/ web.jsonl.zst --to prepared/ --tokenizer llama/ --processes 16

`kit prepare-data` runs this in an image on this node, and launcher = "prepare" as a job. Options: docs/guides/data.md.
"""

import sys

from lib import prepare

if __name__ == "__main__":
    sys.exit(prepare.main())
