"""Bisection: which of the changes between a good run and a bad one made it bad.

| module | what it does |
|---|---|
| `search` | the next states to try; the source of the algorithm |
| `changes` | what differs between two runs, as a list of changes in order |
| `commits` | commits between two snapshots, and the workspace at one |
| `image_changes` | images between two, built with one package after the other |
| `state` | the run folder of a state: some of the changes made, the others not |
| `judge` | whether a run is good, bad, or says nothing |
| `record` | bisect.json: what is known so far |
| `bisect` | the rounds, and the sentence that ends them |
"""
