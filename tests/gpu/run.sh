#!/usr/bin/env bash
# Runs everything that needs a GPU, in stages of at most 8 minutes. Each stage writes its results to $OUT (README.md):
#
#   tests/gpu/run.sh parity      kernels and runners against float64 and the CPU; 20 repeats, equal bits
#   tests/gpu/run.sh sanitize    compute-sanitizer: memcheck, racecheck, initcheck, on a part of them
#   tests/gpu/run.sh kernels     every kernel compared with the copy rate and with PyTorch on the same GPU
#   tests/gpu/run.sh model       a model of 24 layers, d = 1024, without gRPC, compared with GPT-2; weights in
#                                $AFT_WEIGHT_FORMAT (default bf16). AFT_KIND=wkv7 or wkv4: an RWKV of that size
#   tests/gpu/run.sh server      the same model over gRPC, with a load on the same machine
#   tests/gpu/run.sh service     the shipped model on the GPU and on the CPU: what clients see must be the same
#
# It uses the result of `./dev bundle`, which is the folder $AFT_BUNDLE (default build/gpu-bundle, or its .tar.xz).
# LibTorch comes from the PyTorch of the machine's python3 (torch 2.11.0+cu130). A stage fails when nothing of it
# could run. README.md says what to run first.
set -euo pipefail
HERE=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
BUNDLE=${AFT_BUNDLE:-$ROOT/build/gpu-bundle}
OUT=${OUT:-$ROOT/build/gpu-results}
WORK=${AFT_WORK:-${TMPDIR:-/tmp}/aft-gpu}
FORMAT=${AFT_WEIGHT_FORMAT:-bf16}
KIND=${AFT_KIND:-}
STAGE=${1:-}

say() { printf '%s\n' "gpu: $*"; }
die() { printf '%s\n' "gpu: $*" >&2; exit 1; }

prepare() {
  mkdir -p "$OUT" "$WORK"
  if [[ ! -d $BUNDLE && -e $BUNDLE.tar.xz ]]; then
    BUNDLE=$WORK/bundle
    mkdir -p "$BUNDLE"
    tar -xJf "${AFT_BUNDLE:-$ROOT/build/gpu-bundle}.tar.xz" -C "$BUNDLE"
  fi
  [[ -d $BUNDLE/bin ]] || die "no bundle at $BUNDLE: run ./dev bundle first"
  BIN=$BUNDLE/bin
  local torch
  torch=$(python3 -c 'import torch, os; print(os.path.dirname(torch.__file__))' 2>/dev/null) ||
    die "python3 has no torch: LibTorch comes from there"
  LD_LIBRARY_PATH=$torch/lib$(printf ':%s' "$torch"/../nvidia/*/lib)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
  local missing
  missing=$(ldd "$BIN"/* 2>/dev/null | grep 'not found' | sort -u) || true
  [[ -z $missing ]] || die "libraries are missing: $missing"
  export CUBLAS_WORKSPACE_CONFIG=${CUBLAS_WORKSPACE_CONFIG:-:4096:8}  # see model/gpu/cuda_queue.h
  if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    DEVICE=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
  else
    DEVICE="none"
  fi
  say "$STAGE on: $DEVICE"
}

# suites NAME=COMMAND...: runs the stage's test programs within 450 seconds.
suites() { python3 -B "$HERE/suites.py" "$STAGE" "$DEVICE" 450 "$OUT/$STAGE.json" "$@"; }

parity() { suites kernels="$BIN/cuda_kernels_gpu_test" model="$BIN/gpu_model_gpu_test"; }

sanitize() {
  local tool programs=()
  command -v compute-sanitizer >/dev/null || die "no compute-sanitizer on this machine"
  # Some tests expect CUDA to refuse a call; that is no finding.
  for tool in "memcheck --report-api-errors no" racecheck initcheck; do
    programs+=("${tool%% *}=compute-sanitizer --tool $tool --error-exitcode 9 --print-limit 5 $BIN/cuda_kernels_gpu_test")
  done
  # A tool makes tests tens of times slower, so only the first test of every suite and every sixth after it run.
  GTEST_TOTAL_SHARDS=6 GTEST_SHARD_INDEX=0 suites "${programs[@]}"
}

kernels() {
  timeout 300 "$BIN/cuda_kernels_bench" --json="$OUT/kernels.json"
  timeout 180 python3 "$HERE/pytorch.py" "$OUT/pytorch.json" || say "PyTorch's part did not finish"
  python3 "$HERE/report.py" "$OUT" | tee "$OUT/kernels.md"
}

# Makes the model of the next two stages, once for each machine. It gets its name when it is whole: aft-convert does
# that itself.
make_model() {
  MODEL=$WORK/model${KIND:+-$KIND}
  [[ ! -e $MODEL ]] || return 0
  if [[ -z $KIND ]]; then
    rm -rf "$MODEL.partial"
    mkdir "$MODEL.partial"
    PYTHONPATH=$ROOT/tests/bench/serving python3 -B - "$MODEL.partial" <<'END'
import sys
from pathlib import Path
import server
config = server.model_config("aft_local", 1024, 24, window=32, ring="bf16")
server.write_model(Path(sys.argv[1]), config | {"vocab_size": 50304, "tokenizer": {"kind": "chars"}})
END
    mv "$MODEL.partial" "$MODEL"
  else
    python3 "$ROOT/tests/bench/peers/rwkv_model.py" make "$MODEL.pth" --kind "$KIND" --width 1024 --layers 24
    "$BIN/aft-convert" rwkv "$MODEL.pth" "$MODEL"
  fi
}

model() {
  make_model
  AFT_MODEL=$MODEL AFT_DEVICE=cuda:0 AFT_WEIGHT_FORMAT=$FORMAT AFT_SLOTS=1024 timeout 400 "$BIN/engine_bench" \
    --benchmark_filter="${AFT_FILTER:-RunnerDecode|RunnerPrefill|RunnerSnapshot|Engine}" \
    --benchmark_out="$OUT/model-${KIND:+$KIND-}$FORMAT.json" \
    --benchmark_out_format=json --benchmark_min_time=0.5
  python3 "$HERE/report.py" "$OUT" | tee "$OUT/model.md"
}

server() {
  local address pid streams results=$OUT/server-${KIND:+$KIND-}$FORMAT.jsonl
  make_model
  cat >"$WORK/server.textproto" <<END
listen_address: "127.0.0.1:0"
metrics_address: ""
models { name: "bench" path: "$MODEL" device: "cuda:0" weight_format: "$FORMAT" slots: 1024 max_step_tokens: 2048 }
END
  rm -f "$WORK/ready"
  "$BIN/aft-server" --config="$WORK/server.textproto" --ready_file="$WORK/ready" 2>"$OUT/server.log" &
  pid=$!
  trap 'kill "$pid" 2>/dev/null || true' EXIT
  until [[ -e $WORK/ready ]]; do
    kill -0 "$pid" 2>/dev/null || { tail -n 5 "$OUT/server.log"; die "the server did not start"; }
    sleep 0.2
  done
  read -r address <"$WORK/ready"
  "$BIN/aftload" --address="$address" --json --streams=8 --requests=16 --max-tokens=64 >/dev/null
  : >"$results"
  for streams in 1 8 64 256; do
    "$BIN/aftload" --address="$address" --json --max-tokens=256 --streams="$streams" \
      --requests=$(( streams * 3 )) --warmup="$streams" | tee -a "$results"
  done
  kill -TERM "$pid"
  wait "$pid"
  trap - EXIT
  python3 "$HERE/report.py" "$OUT" | tee "$OUT/server.md"
}

service() {
  python3 -B "$HERE/service.py" "$BIN" "$ROOT"/model/zoo/austen-aft-local "${AFT_DEVICE:-cuda:0}" "$OUT/service.json"
}

case $STAGE in
  parity | sanitize | kernels | model | server | service) prepare; "$STAGE" ;;
  *) die "usage: tests/gpu/run.sh parity|sanitize|kernels|model|server|service" ;;
esac
