#!/usr/bin/env bash
# The shipped model over gRPC: 1, 8 and 64 streams, five runs each; start-up time and memory; one
# stream of 100,000 tokens. Needs `./dev build` and a quiet machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
BIN=build/default/bin
MODEL="${AFT_MODEL:-model/zoo/austen-aft-local}"
FOLDER=$(mktemp -d)

start=$(date +%s%N)
"$BIN/aft-server" --model="$MODEL" --listen_address=127.0.0.1:0 --metrics_address=none \
  --ready_file="$FOLDER/ready" 2>"$FOLDER/log" &
PID=$!
trap 'kill "$PID" 2>/dev/null || true; rm -rf "$FOLDER"' EXIT
until [[ -e $FOLDER/ready ]]; do
  kill -0 "$PID" || { cat "$FOLDER/log" >&2; exit 1; }
  sleep 0.001
done
echo "start to ready: $(( ($(date +%s%N) - start) / 1000000 )) ms"
read -r ADDRESS <"$FOLDER/ready"
memory() { awk '/^VmRSS|^VmHWM/ { printf "%s %d MB  ", $1, $2 / 1024 } END { print "" }' "/proc/$PID/status"; }

load() { "$BIN/aftload" --address="$ADDRESS" "$@"; }
load --streams=8 --requests=32 --max-tokens=256 >/dev/null  # warm
for streams in 1 8 64; do
  for run in 1 2 3 4 5; do
    echo "--- $streams streams, run $run"
    load --streams="$streams" --requests=$(( streams * 4 )) --max-tokens=512 --warmup="$streams"
  done
done
memory
echo "--- one stream, 100,000 tokens"
load --streams=1 --requests=1 --max-tokens=100000 --duration=300
memory
kill -TERM "$PID"
wait "$PID"
