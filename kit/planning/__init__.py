"""Planning: turns a job that was read into files and an argv (plan.py).

Data flows in one direction. The only files read are the kit's own templates.
"""
