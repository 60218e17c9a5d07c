# shellcheck shell=bash
# Implements ./dev demo. ./dev sources this file, which uses its settings and helpers.

# Starts a server on ports that the kernel chooses. Sets SERVER_PID, ADDRESS and METRICS.
start_server() {
  READY_FOLDER=$(mktemp -d)
  "$BIN/aft-server" --model="$MODEL" --weight_format=int8 --listen_address=127.0.0.1:0 --metrics_address=127.0.0.1:0 \
    --ready_file="$READY_FOLDER/ready" 2>"$LOGS/demo-server.log" &
  SERVER_PID=$!
  trap 'kill "$SERVER_PID" 2>/dev/null || true; rm -rf "$READY_FOLDER"' EXIT
  until [[ -e $READY_FOLDER/ready ]] || ! kill -0 "$SERVER_PID" 2>/dev/null; do sleep 0.1; done
  if [[ ! -e $READY_FOLDER/ready ]]; then
    tail -n 5 "$LOGS/demo-server.log" >&2
    die "the server did not start; its log is $LOGS/demo-server.log"
  fi
  { read -r ADDRESS && read -r METRICS; } <"$READY_FOLDER/ready"
}

stop_server() {
  local rc=0
  kill -TERM "$SERVER_PID"
  wait "$SERVER_PID" || rc=$?
  trap - EXIT
  rm -rf "$READY_FOLDER"
  (( rc == 0 )) || die "the server ended with exit code $rc; its log is $LOGS/demo-server.log"
}

# scrape FILE: writes the samples of the metrics page to FILE.
scrape() {
  local connection
  exec {connection}<>"/dev/tcp/${METRICS%:*}/${METRICS##*:}"
  printf 'GET /metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$METRICS" >&"$connection"
  tr -d '\r' <&"$connection" | grep '^aft_' >"$1" || die "the metrics page at $METRICS is empty"
  exec {connection}>&-
}

# Prints the counters and gauges that differ between two scrapes; histograms with count and mean.
metrics_moved() {
  awk '
    { split($0, part, / [^ ]*$/); name = part[1]; value = $NF }
    name ~ /_bucket\{|_age_seconds\{/ { next }
    NR == FNR { before[name] = value; next }
    name ~ /_sum(\{|$)/ { sums[name] = value - before[name]; next }
    value != before[name] { order[++n] = name; moved[name] = value - before[name]; now[name] = value }
    END {
      for (i = 1; i <= n; ++i) {
        name = order[i]; sum = name; sub(/_count/, "_sum", sum)
        if (name ~ /_count(\{|$)/ && sum in sums) {
          shown = name; sub(/_count/, "", shown)
          printf "  %-64s %+d, mean %.4g\n", shown, moved[name], sums[sum] / moved[name]
        } else {
          printf "  %-64s %+.6g  (now %.6g)\n", name, moved[name], now[name]
        }
      }
    }' "$1" "$2"
}

title() { if [[ -t 1 ]]; then printf '\n\e[1m%s\e[0m\n' "$*"; else printf '\n%s\n' "$*"; fi; }

demo() {
  local before after prompt='It is a truth universally acknowledged, that'
  setup
  # Builds only the programs, with the kernels of this processor. An earlier configuration stays as it is.
  [[ -e build/default/build.ninja ]] ||
    configure default -DAFT_CUDA=OFF -DAFT_TESTS=OFF -DAFT_BENCH=OFF -DAFT_KERNEL_TARGETS=NATIVE
  compile default aft-server aftctl
  find_model
  start_server
  before="$READY_FOLDER/before" after="$READY_FOLDER/after"
  say "aft-server serves $MODEL at $ADDRESS, metrics at http://$METRICS/metrics"
  scrape "$before"

  title "One request, token by token"
  printf '%s' "$prompt"
  "$BIN/aftctl" generate --address="$ADDRESS" --max-tokens=400 --temperature=0.55 --seed=7 --prompt="$prompt"

  title "Eight sequences of one request, in the same steps"
  "$BIN/aftctl" generate --address="$ADDRESS" --max-tokens=400 --temperature=0.55 --seed=7 --n=8 --prompt="$prompt" >/dev/null

  title "Metrics that moved"
  scrape "$after"
  metrics_moved "$before" "$after"

  title "SIGTERM"
  stop_server
  say "The server drained and stopped cleanly (exit code 0). Its log: $LOGS/demo-server.log"
  say "Next: ./dev run, and try the model in a browser at http://127.0.0.1:8080/"
}
