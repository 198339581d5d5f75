"""Health of a run: what is wrong with it, why it ended, and what to do next.

| module | does |
|---|---|
| `answer` | types: an answer with its rule, verdict, one line, evidence and next command |
| `run_record` | the data of a run that the rules read; its size is limited, even for huge logs |
| `log_endings` | finds the end of a program's log: its exception, and the place in the user's code |
| `pending_reasons`, `batch_log_rules`, `program_rules`, `framework_rules` | the rules, as data |
| `blamed_rank`, `collectives` | finds the rank to blame: the first that failed, or the one that the first was waiting for |
| `progress` | the ranks' reports, and the stalled ranks |
| `stall_evidence`, `stall_cause_rules`, `stall_rules` | the evidence of each rank at a stall, and the rules for the culprit and the
cause |
| `rotate_ranks`, `miscomputing_nodes` | repeats the last steps with the ranks on other nodes, and finds a node that computes wrong
numbers |
| `failing_nodes` | nodes that fail more runs than others |
| `slurm_state_rules` | rules for ends by Slurm or the user |
| `why` | the order of the rules |
"""
