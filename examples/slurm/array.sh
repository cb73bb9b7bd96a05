#!/bin/bash
# One job for each method and seed. A job that was killed is queued again, and continues its run to the same bits.
#
#   sbatch examples/slurm/array.sh --dataset cifar10 --partition dirichlet:0.05 --clients 100 --rounds 200
#
# Options of `fedskew run` come after the script. Run it where the runs shall be, with fedskew in the PATH.
#SBATCH --job-name=fedskew
#SBATCH --array=0-8
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
set -euo pipefail
methods=(fedavg fedlmd fedvls)
seeds=3 # --array counts to methods times seeds, less one
method=${methods[$((SLURM_ARRAY_TASK_ID / seeds))]}
seed=$((SLURM_ARRAY_TASK_ID % seeds))
out=runs/$method-seed$seed

if [ -f "$out/config.toml" ]; then
    exec fedskew resume "$out"
fi
exec fedskew run --method "$method" --seed "$seed" --workers "$SLURM_CPUS_PER_TASK" --out "$out" "$@"
