#!/bin/bash
# Submits three SLURM jobs that mine one atlas; made by mnemoscope mine --launch slurm --print.
# Partition, account, time: export SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT, or add #SBATCH lines to the jobs.
set -euo pipefail
mkdir -p -- /data/me/atlas.slurm

# 1. prepare: reads the text and writes the plan.
prepare=$(sbatch --parsable --output=/data/me/atlas.slurm/prepare-%j.log <<'END_OF_JOB'
#!/bin/bash
#SBATCH --job-name=mnemoscope-prepare
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
cd -- /data/me || exit 2
export OMP_NUM_THREADS=2 MKL_NUM_THREADS=2

caught=yes again= ended= running=
# SIGUSR1: the time is nearly up. SIGTERM: SLURM ends this job, and puts it back by itself where it should.
trap 'caught=yes again=yes; kill -USR1 "$running" 2> /dev/null' USR1
trap 'caught=yes ended=yes; kill -USR1 "$running" 2> /dev/null' TERM
mnemoscope mine gpt2 wiki.txt --out atlas --triggers 20 --prepare &
running=$!
[ -z "$again$ended" ] || kill -USR1 "$running"
while [ -n "$caught" ]; do  # a signal ends `wait`, too
  caught=
  wait "$running"
  code=$?
done
if [ "$code" -eq 75 ] && [ -n "$again" ] && [ -z "$ended" ]; then  # saved; goes on from there
  task=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}
  scontrol requeue "${task:-$SLURM_JOB_ID}" || echo "mnemoscope: this job could not be put back into the queue" >&2
fi
exit "$code"
END_OF_JOB
)
prepare=${prepare%%;*}  # a cluster's name may follow

# 2. work: the workers run the model over the text.
work=$(sbatch --parsable --output=/data/me/atlas.slurm/work-%A_%a.log "--dependency=afterok:$prepare" --kill-on-invalid-dep=yes <<'END_OF_JOB'
#!/bin/bash
#SBATCH --job-name=mnemoscope-work
#SBATCH --array=0-2
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
cd -- /data/me || exit 2
export OMP_NUM_THREADS=2 MKL_NUM_THREADS=2

caught=yes again= ended= running=
# SIGUSR1: the time is nearly up. SIGTERM: SLURM ends this job, and puts it back by itself where it should.
trap 'caught=yes again=yes; kill -USR1 "$running" 2> /dev/null' USR1
trap 'caught=yes ended=yes; kill -USR1 "$running" 2> /dev/null' TERM
mnemoscope worker atlas --text-only &
running=$!
[ -z "$again$ended" ] || kill -USR1 "$running"
while [ -n "$caught" ]; do  # a signal ends `wait`, too
  caught=
  wait "$running"
  code=$?
done
if [ "$code" -eq 75 ] && [ -n "$again" ] && [ -z "$ended" ]; then  # saved; goes on from there
  task=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}
  scontrol requeue "${task:-$SLURM_JOB_ID}" || echo "mnemoscope: this job could not be put back into the queue" >&2
fi
exit "$code"
END_OF_JOB
)
work=${work%%;*}  # a cluster's name may follow

# 3. finish: does what the workers have left, merges and seals.
finish=$(sbatch --parsable --output=/data/me/atlas.slurm/finish-%j.log "--dependency=afterok:$prepare,afterany:$work" --kill-on-invalid-dep=yes <<'END_OF_JOB'
#!/bin/bash
#SBATCH --job-name=mnemoscope-finish
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
cd -- /data/me || exit 2
export OMP_NUM_THREADS=2 MKL_NUM_THREADS=2

caught=yes again= ended= running=
# SIGUSR1: the time is nearly up. SIGTERM: SLURM ends this job, and puts it back by itself where it should.
trap 'caught=yes again=yes; kill -USR1 "$running" 2> /dev/null' USR1
trap 'caught=yes ended=yes; kill -USR1 "$running" 2> /dev/null' TERM
mnemoscope mine gpt2 wiki.txt --out atlas --triggers 20 --workers auto &
running=$!
[ -z "$again$ended" ] || kill -USR1 "$running"
while [ -n "$caught" ]; do  # a signal ends `wait`, too
  caught=
  wait "$running"
  code=$?
done
if [ "$code" -eq 75 ] && [ -n "$again" ] && [ -z "$ended" ]; then  # saved; goes on from there
  task=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}
  scontrol requeue "${task:-$SLURM_JOB_ID}" || echo "mnemoscope: this job could not be put back into the queue" >&2
fi
exit "$code"
END_OF_JOB
)
finish=${finish%%;*}  # a cluster's name may follow

echo "submitted: prepare $prepare, work $work, finish $finish; squeue --me shows them"
