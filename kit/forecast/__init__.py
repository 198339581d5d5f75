"""Forecasts: when a job would start (`kit when`), and what a submit will need and how long it will take (`kit submit`).

| module | does |
|---|---|
| `backfill` | a plan of the queue, made as Slurm's backfill makes its own |
| `simulate_queue` | the plans of the queue after each likely end of a job |
| `size_and_place_choices` | the sizes and places at which a job may run, each planned |
| `starts` | the start of a request, from a plan of the queue |
| `answers` | the start of each choice, from the plan or from Slurm |
| `time_wording` | times and durations in words |
| `gpt_program_options` | the model's shape from the options of the kit's own programs |
| `rank_memory` | the memory of a rank of such a program |
| `past_runs` | times and memory of earlier runs of the same program |
| `free_space` | free space and quota for the checkpoints |
| `submit_forecast` | everything that can be said about a job before its submit |
"""
