"""Forecasts: when a job would start (`kit when`), and what a submit will need and take (`kit submit`).

| module | does |
|---|---|
| `backfill` | a plan of the queue, made as Slurm's backfill makes its own |
| `choices` | the sizes at which a job may run, each planned |
| `starts` | each choice's start, by the plan and by Slurm |
| `said` | a start as a sentence |
| `programs` | what the options of the kit's own programs say of their model |
| `memory` | what a rank of such a program takes |
| `past` | what earlier runs of the same program took |
| `room` | free space and quota under the checkpoints |
| `outlook` | all that a submit can say before it happens |
"""
