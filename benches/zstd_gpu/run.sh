#!/usr/bin/env bash
# On a machine with a GPU of compute capability 9.0: builds, makes the frames, checks, times. Two minutes.
#
#   bash benches/zstd_gpu/run.sh [sanitize] [ncu]
#
# nvCOMP is measured beside if libnvcomp.so.5 is found (LD_LIBRARY_PATH). `sanitize` runs memcheck and racecheck over small
# frames first, `ncu` profiles a batch at the end. Files go to $OUT, or to /tmp.
set -euo pipefail
cd "$(dirname "$0")"
out=${OUT:-/tmp}
export PATH=$PATH:/usr/local/cuda/bin
nvcc -O3 -std=c++17 -arch=sm_90 -lineinfo -o /tmp/zstd_gpu zstd_gpu.cu host.cc -ldl
if [[ " $* " == *" sanitize "* ]]; then
  python3 make_frames.py /tmp/small.bin --quick > /dev/null
  for tool in memcheck racecheck; do
    timeout 200 compute-sanitizer --tool $tool --print-limit 5 /tmp/zstd_gpu /tmp/small.bin check | tail -20 || true
  done
fi
python3 make_frames.py /tmp/frames.bin
timeout 300 /tmp/zstd_gpu /tmp/frames.bin sweep 2>&1 | tee "$out/zstd_gpu.txt"
if [[ " $* " == *" ncu "* ]]; then
  timeout 200 ncu --clock-control none --set detailed --page details /tmp/zstd_gpu /tmp/frames.bin profile > "$out/zstd_gpu_ncu.txt" || true
  grep -E "zstd_|Duration|Executed Ipc|Registers|Achieved Occ|No Eligible|L1/TEX Hit|L2 Hit|DRAM Throughput|Memory Throughput" "$out/zstd_gpu_ncu.txt" || true
fi
