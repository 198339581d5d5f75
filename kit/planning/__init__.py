"""Planning: a job that was read becomes files and an argv (plan.py).

Data walks down once; no disk is touched but the kit's own templates.
"""
