"""Comparison of two runs: what is recorded of each is read once, and pure functions say how it differs.

| module | what it does |
|---|---|
| `recorded` | reads a run folder, its snapshot and its image's lock: all that a comparison sees |
| `series` | reported numbers, step by step: where they part |
| `keys` | keys of the resolved jobs, with the layers that set them |
| `texts` | two sets of files: unified diffs, and words for what has none |
| `images` | two locks: packages, base, environment |
| `compare` | all of it, and the sentence that ends it |
| `shown` | a comparison as lines of text |
"""
