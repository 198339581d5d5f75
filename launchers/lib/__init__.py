"""Library of the training programs: ranks, options, data, models, checkpoints, metrics. Needs torch only."""
