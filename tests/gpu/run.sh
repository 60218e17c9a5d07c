#!/usr/bin/env bash
# Everything that needs a GPU, in stages of at most 8 minutes, each with one small JSON in $OUT:
#
#   tests/gpu/run.sh parity      kernels and runners against float64 and the CPU; 20 repeats, equal bits
#   tests/gpu/run.sh sanitize    compute-sanitizer: memcheck, racecheck, initcheck, on a part of them
#   tests/gpu/run.sh kernels     every kernel against the copy rate, and PyTorch on the same GPU
#   tests/gpu/run.sh model       a model of 24 layers, d = 1024, bf16, without gRPC; GPT-2 beside it
#   tests/gpu/run.sh server      the same over gRPC, with a load on the same machine
#
# Uses what `./dev bundle` made: the folder $AFT_BUNDLE (default build/gpu-bundle, or its .tar.xz), and
# the machine's own PyTorch (torch 2.11.0+cu130, found by asking python3), which brings LibTorch. What
# the machine lacks is skipped with a word.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
BUNDLE=${AFT_BUNDLE:-$ROOT/build/gpu-bundle}
OUT=${OUT:-$ROOT/build/gpu-results}
WORK=${AFT_WORK:-${TMPDIR:-/tmp}/aft-gpu}
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
  if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    DEVICE=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
  else
    DEVICE="none"
  fi
  say "$STAGE on: $DEVICE"
}

# tests_json NAME PROGRAM [ARGUMENT...]: runs a GoogleTest program, leaves its result in $WORK/NAME.json.
# A program that dies leaves its exit code there.
tests_json() {
  local name=$1 rc=0 begin=$SECONDS
  shift
  rm -f "$WORK/$name.gtest.json"
  timeout 420 "$@" --gtest_output="json:$WORK/$name.gtest.json" --gtest_brief=1 >"$WORK/$name.log" 2>&1 || rc=$?
  tail -n 15 "$WORK/$name.log"
  python3 - "$name" "$rc" $(( SECONDS - begin )) "$WORK" <<'PY'
import json, sys
from pathlib import Path
name, rc, seconds, work = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
result = {"program": name, "exit_code": rc, "seconds": seconds}
report = work / f"{name}.gtest.json"
if report.exists():
  tests = [t for suite in json.loads(report.read_text())["testsuites"] for t in suite["testsuite"]]
  result["tests"] = len(tests)
  result["skipped"] = sum(t["result"] == "SKIPPED" for t in tests)
  if "no CUDA device" in (work / f"{name}.log").read_text():  # all of them; the report does not say so
    result["skipped"] = len(tests)
  result["failed"] = [f"{t['classname']}.{t['name']}: {t['failures'][0]['failure'][:300]}"
                      for t in tests if "failures" in t][:20]
(work / f"{name}.json").write_text(json.dumps(result))
PY
}

# join FILE NAME...: one JSON of the stage from those of its parts.
join() {
  local out=$1
  shift
  python3 - "$STAGE" "$DEVICE" "$WORK" "$out" "$@" <<'PY'
import json, sys
from pathlib import Path
stage, device, work, out, *names = sys.argv[1:]
parts = [json.loads((Path(work) / f"{n}.json").read_text()) for n in names if (Path(work) / f"{n}.json").exists()]
Path(out).write_text(json.dumps({"stage": stage, "device": device, "parts": parts}, indent=1))
bad = [p for p in parts if p.get("exit_code")]
tests, skipped = (sum(p.get(key, 0) for p in parts) for key in ("tests", "skipped"))
print(f"gpu: {stage}: {tests} tests, {skipped} skipped; {len(parts)} programs, {len(bad)} failed; {out}")
sys.exit(1 if bad else 0)
PY
}

parity() {
  tests_json kernels "$BIN/cuda_kernels_gpu_test"
  tests_json model "$BIN/gpu_model_gpu_test"
  join "$OUT/parity.json" kernels model
}

sanitize() {
  local tool names=()
  if ! command -v compute-sanitizer >/dev/null; then
    say "skipped: no compute-sanitizer on this machine"
    printf '{"stage": "sanitize", "device": "%s", "skipped": "no compute-sanitizer"}\n' "$DEVICE" >"$OUT/sanitize.json"
    return
  fi
  for tool in memcheck racecheck initcheck; do
    # A tool is tens of times slower: every sixth test, which are all families.
    GTEST_TOTAL_SHARDS=6 GTEST_SHARD_INDEX=0 tests_json "$tool" timeout 150 compute-sanitizer --tool "$tool" \
      --error-exitcode 9 --print-limit 5 "$BIN/cuda_kernels_gpu_test"
    names+=("$tool")
  done
  join "$OUT/sanitize.json" "${names[@]}"
}

kernels() {
  timeout 300 "$BIN/cuda_kernels_bench" --json="$OUT/kernels.json"
  timeout 180 python3 "$HERE/pytorch.py" "$OUT/pytorch.json" || say "PyTorch's part did not finish"
  python3 "$HERE/report.py" "$OUT" | tee "$OUT/kernels.md"
}

# The model of both stages below, made once a machine.
make_model() {
  MODEL=$WORK/model
  [[ -e $MODEL/model.safetensors ]] || python3 "$HERE/make_model.py" "$MODEL" ring=bf16
}

model() {
  make_model
  AFT_MODEL=$MODEL AFT_DEVICE=cuda:0 AFT_WEIGHT_FORMAT=bf16 AFT_SLOTS=1024 timeout 400 "$BIN/engine_bench" \
    --benchmark_filter='RunnerDecode|RunnerPrefill|Engine' --benchmark_out="$OUT/model.json" \
    --benchmark_out_format=json --benchmark_min_time=0.5
  python3 "$HERE/report.py" "$OUT" | tee "$OUT/model.md"
}

server() {
  local address pid streams
  make_model
  cat >"$WORK/server.textproto" <<END
listen_address: "127.0.0.1:0"
metrics_address: ""
models { name: "bench" path: "$MODEL" device: "cuda:0" weight_format: "bf16" slots: 1024 max_step_tokens: 2048 }
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
  : >"$OUT/server.jsonl"
  for streams in 1 8 64 256; do
    "$BIN/aftload" --address="$address" --json --max-tokens=256 --streams="$streams" \
      --requests=$(( streams * 3 )) --warmup="$streams" | tee -a "$OUT/server.jsonl"
  done
  kill -TERM "$pid"
  wait "$pid"
  trap - EXIT
  python3 "$HERE/report.py" "$OUT" | tee "$OUT/server.md"
}

case $STAGE in
  parity | sanitize | kernels | model | server) prepare; "$STAGE" ;;
  *) die "usage: tests/gpu/run.sh parity|sanitize|kernels|model|server" ;;
esac
