"""Forms of sbatch scripts, written for these tests, and what each becomes."""
