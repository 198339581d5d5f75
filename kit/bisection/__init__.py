"""Bisection: finds which change between a good run and a bad one made it bad.

| module | what it does |
|---|---|
| `search` | the next states to try; the source of the algorithm |
| `changes` | the differences of two runs, as an ordered list of changes |
| `commits` | commits between two snapshots, and the workspace at a commit |
| `intermediate_images` | images between two, built with one changed package after the other |
| `state_run` | the run of a state: with the first changes, without the others |
| `judge` | whether a run is good, bad, or untestable |
| `record` | bisect.json: the results so far |
| `bisect` | the rounds, and the concluding sentence |
"""
