#!/usr/bin/env bash
# Everything worth knowing of a card, in one go, on a machine that has only a built `sterna` and this script:
# self-test, compute-sanitizer, decode and prefill at several depths, and what ncu says of one decode step.
#
#   scripts/gpu-check.sh target/release/sterna [folder for the results]
#
# compute-sanitizer and ncu come with the CUDA toolkit; where one is missing, a line says so.
set -euo pipefail

sterna=${1:?usage: scripts/gpu-check.sh PATH-OF-STERNA [FOLDER]}
out=${2:-gpu-check}
mkdir -p "$out"

step() { printf '\n== %s\n' "$1" | tee -a "$out/log.txt"; }
keep() { tee -a "$out/log.txt"; }

step "devices"
"$sterna" devices | keep
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit --format=csv 2>/dev/null | keep || true

step "self-test"
"$sterna" selftest --backend cuda | keep

for tool in memcheck racecheck; do
  step "compute-sanitizer $tool"
  if command -v compute-sanitizer >/dev/null; then
    compute-sanitizer --tool "$tool" --error-exitcode 1 "$sterna" selftest --backend cuda | keep
  else
    echo "not run: compute-sanitizer is not here" | keep
  fi
done

for head in f16 q8_0 q6_k; do
  model=$out/2b-$head.gguf
  [ -e "$model" ] || "$sterna" synth --preset bitnet-2b-4t --head-type "$head" "$model"
  step "bench, head $head"
  "$sterna" bench -m "$model" --backend cuda -p 512 -n 128 -d 0,4096 -r 5 | keep
done
step "bench, head f16, depth 32768"
"$sterna" bench -m "$out/2b-f16.gguf" --backend cuda -p 0 -n 128 -d 32768 -r 3 | keep

step "ncu, one decode step"
if command -v ncu >/dev/null; then
  ncu --graph-profiling node --section SpeedOfLight --section MemoryWorkloadAnalysis --section LaunchStats \
    --launch-skip 400 --launch-count 153 --csv --log-file "$out/ncu.csv" \
    "$sterna" run -m "$out/2b-f16.gguf" --backend cuda -p Hello -n 4 --temp 0 >/dev/null
  echo "$out/ncu.csv" | keep
else
  echo "not run: ncu is not here" | keep
fi
