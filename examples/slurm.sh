#!/bin/bash
# A cluster on Slurm: one torchrun, and so one supervisor, per node of the allocation.
#   sbatch --nodes 4 examples/slurm.sh JOB.yaml RUN [key=value ...]
# RUN should lie on a disk that all nodes share. Ends with the last committed round 120 s before the time limit.
#SBATCH --job-name=hogwild
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=B:USR1@120
set -euo pipefail

job=$1 run=$2
shift 2
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))

srun --kill-on-bad-exit=0 torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node 1 --max-restarts 0 \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$first:$port" \
    -m hogwild train "$job" --run-dir "$run" cluster.engine=torchrun "$@" &
steps=$!
trap 'kill -TERM "$steps"' USR1 # srun passes it on to every node, and torchrun to hogwild; of USR1 torchrun would die
while kill -0 "$steps" 2> /dev/null; do wait "$steps" || true; done
wait "$steps"
