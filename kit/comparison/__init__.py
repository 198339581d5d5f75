"""Comparison of two runs: the records of each are read once, and pure functions compute the differences.

| module | what it does |
|---|---|
| `recorded_run` | reads a run folder, its snapshot and its image's lock: all data of a comparison |
| `metric_divergence` | reported numbers, step by step: the first step at which they differ |
| `keys` | keys of the resolved jobs, with the layers that set them |
| `text_diffs` | two sets of files: unified diffs, and a description where there is none |
| `images` | two locks: packages, base, environment |
| `compare` | combines all of these, with a concluding sentence |
| `as_text` | a comparison as lines of text |
"""
