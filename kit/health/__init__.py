"""Health of a run: what is wrong with it, why it ended, and what to do next.

| module | does |
|---|---|
| `answer` | an answer: a rule, a verdict, one line, evidence, the next command |
| `record` | what the rules read of a run, bounded whatever the size of its logs |
| `endings` | how a program's log ends: its exception, the place in the user's code |
| `pending`, `before_ranks`, `programs`, `frameworks` | the rules, as data |
| `ranks` | which rank is to blame: the first that failed, or the one that the first was waiting for |
| `progress` | what the ranks report, and which of them stands still |
| `evidence`, `stalls` | what was gathered of each rank at a stall, and the rules that name the culprit and the cause |
| `deviation`, `rotation` | the last steps again with the ranks on other nodes, and the node that a deviation follows |
| `ends` | rules of how Slurm or the user ended a run |
| `why` | the order of the rules |
"""
