"""What the training programs share: ranks, options, data, models, checkpoints, metrics. Needs torch only."""
