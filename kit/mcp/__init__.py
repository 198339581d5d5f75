"""`kit mcp`: tools for agents, over the Model Context Protocol on stdin and stdout. No port is opened.

| module | what it does |
|---|---|
| `limits` | the user's limits, from a file that no tool writes |
| `spending` | what was spent, beside the runs; holds for all servers of a project |
| `outcomes` | what became of a submit that a killed server left open, and what an ended run used |
| `cost` | node-hours and GPU-hours of a plan, at most |
| `plans` | plans that wait for their confirmation |
| `as_data` | text of other programs, marked, bounded and escaped |
| `read_log` | a part of a log |
| `wait_for_change` | the first end, stall or start of many runs |
| `find_own` | runs and job files that a tool may name |
| `planning_tools`, `run_tools`, `site_tools` | the tools |
| `tools` | their names, arguments and descriptions |
| `resources` | schema, guides, a run's manifest and report |
| `server` | the official SDK, and the only module that imports it |
"""
