"""Reads an sbatch script and says it as a job file, with a report that has every line of the script. Never runs the script."""
