"""From a job to a run in the queue: prepare, snapshot, folder, sbatch; then resume, rerun and cancel."""
