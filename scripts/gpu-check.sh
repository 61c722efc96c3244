#!/usr/bin/env bash
# Checks and benchmarks a GPU in one run, on a machine that has only a built `sterna` and this script:
# self-test, compute-sanitizer, decode and prefill at several depths, and an ncu profile of one decode step.
#
#   scripts/gpu-check.sh target/release/sterna [folder for the results]
#
# compute-sanitizer and ncu come with the CUDA toolkit; if one is missing, a line says so. Failed steps are
# listed at the end; a failed self-test ends the run, because timings of wrong results are worthless.
set -euo pipefail

sterna=${1:?usage: scripts/gpu-check.sh PATH-OF-STERNA [FOLDER]}
out=${2:-gpu-check}
mkdir -p "$out"
: >"$out/log.txt"

step() { printf '\n== %s\n' "$1" | tee -a "$out/log.txt"; }
keep() { tee -a "$out/log.txt"; }
failed=()
try() { # a name, and a command
  local what=$1
  shift
  "$@" 2>&1 | keep || failed+=("$what")
}

step "devices"
"$sterna" devices | keep
if ! grep -q '^cuda: [0-9]' "$out/log.txt"; then
  echo "nothing to check: the CUDA driver finds no GPU on this machine" | keep
  exit 1
fi
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit --format=csv 2>/dev/null |
  keep || true

step "self-test"
"$sterna" selftest --backend cuda 2>&1 | keep

# The short self-test, because every memory access is checked: the four take ten minutes at most.
for tool in memcheck racecheck synccheck initcheck; do
  step "compute-sanitizer $tool"
  # A kernel is looked up in one module after another: its absence in the first is not an error.
  quiet=
  [ "$tool" != memcheck ] || quiet="--report-api-errors no"
  if command -v compute-sanitizer >/dev/null; then
    try "compute-sanitizer $tool" timeout 150 \
      compute-sanitizer --tool "$tool" $quiet --error-exitcode 1 "$sterna" selftest --backend cuda --quick turboquant
  else
    echo "not run: compute-sanitizer not found" | keep
  fi
done

model=$out/bitnet-2b-4t.gguf
[ -e "$model" ] || "$sterna" synth --preset bitnet-2b-4t --head-type f16 "$model"
for head in f16 q8_0 q6_k; do
  step "bench, head $head"
  try "bench, head $head" \
    "$sterna" bench -m "$model" --head-type "$head" --backend cuda -p 512 -n 128 -d 0,4096,32768 -r 5
done
for kv in q8_0 turboquant; do
  step "bench, head f16, KV cache $kv"
  try "bench, KV cache $kv" \
    "$sterna" bench -m "$model" --kv-cache-type "$kv" --backend cuda -p 512 -n 128 -d 0,4096,32768 -r 5
done

# Per kernel in ncu's table: launches, their total time, and the mean share of the memory bandwidth.
summary() {
  awk -F '","' '
    /^"ID"/ { for (i = 1; i <= NF; i++) { gsub(/"/, "", $i); at[$i] = i }; next }
    !/^"/ || !at["Metric Name"] { next }
    {
      kernel = $at["Kernel Name"]; sub(/\(.*/, "", kernel)
      metric = $at["Metric Name"]; value = $at["Metric Value"]; gsub(/[",]/, "", value)
      if (metric == "Duration") { n[kernel]++; time[kernel] += value }
      if (metric == "DRAM Throughput") share[kernel] += value
    }
    END { for (k in n) printf "%10.1f us  %4d x %-28s DRAM %5.1f %%\n",
      time[k] / 1000, n[k], k, share[k] / n[k] }
  ' "$1" | sort -rn
}

step "ncu, one decode step"
if command -v ncu >/dev/null; then
  profile() {
    ncu --graph-profiling node --section SpeedOfLight --section MemoryWorkloadAnalysis --section LaunchStats \
      --launch-skip 400 --launch-count 153 --print-units base --csv --log-file "$out/ncu.csv" \
      "$sterna" run -m "$model" --backend cuda -p Hello -n 4 --temp 0 >/dev/null && summary "$out/ncu.csv"
  }
  try "ncu" profile
else
  echo "not run: ncu not found" | keep
fi

step "end"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}" | keep
  exit 1
fi
echo "all steps passed; the output is in $out/log.txt" | keep
