"""Looks into a running job: stacks, ports, steps on its nodes, tmux."""
