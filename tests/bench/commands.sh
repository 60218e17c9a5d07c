# The commands ./dev bench and ./dev compare. ./dev sources this file after tests/commands.sh.
# shellcheck shell=bash

bench() {
  local program pattern tools found=''
  [[ ${1:-} != -* ]] || die "usage: ./dev bench [NAME...] [FLAG...]; docs/benchmarks.md lists the names"
  case ${1:-} in
    streams | rpc | http | batching | capacity | interference | overload | context | clients | rollout | survival | \
      checkpoints | soak | aiperf)
      build default aft-server aftload bare_server aft_descriptors python_stubs
      if [[ " $* " == *" survival "* ]]; then fetch_envoy; fi
      if [[ " $* " == *" aiperf "* ]]; then fetch_aiperf; fi
      exec "$VENV/bin/python" -B tests/bench/serving/serving.py "$@"
      ;;
    fleet)
      setup
      fetch_simpy
      export PYTHONPATH="$AFT_SIMPY"
      if [[ ${2:-} == measure || ${2:-} == check ]]; then
        build default aft-server aftload
        exec "$VENV/bin/python" -B tests/bench/serving/fleet.py "${@:2}"
      fi
      if [[ " $* " == *" --plots "* ]]; then
        fetch_matplotlib
        PYTHONPATH+=":$AFT_MATPLOTLIB"
      fi
      exec "$VENV/bin/python" -B tools/fleet_sim.py "${@:2}"
      ;;
    sizing)
      build default aft-convert aft-server engine_bench
      exec "$VENV/bin/python" -B tests/bench/serving/sizing.py "${@:2}"
      ;;
    rows)
      build default engine_bench
      exec "$VENV/bin/python" -B tests/bench/engine/rows.py "${@:2}"
      ;;
    texts)
      build default aft-server python_stubs
      export PYTHONPATH=build/default/tests/unit/client/python
      exec "$VENV/bin/python" -B tests/bench/serving/texts.py "${@:2}"
      ;;
    triton)
      apt_install debootstrap debootstrap
      build default aft-server
      find_model
      tools="$CACHE/triton-tools-2.60.0"
      once "$tools/.complete" triton-tools "Making a Debian 13 with NVIDIA's tools (1.6 GB on disk, once per user)" \
        tests/bench/serving/triton_tools.sh install "$tools"
      exec tests/bench/serving/triton_tools.sh measure "$tools" "$BIN" "$MODEL"
      ;;
    peers)
      build default engine_bench aft-server aftctl aft-convert
      exec "$VENV/bin/python" -B tests/bench/peers/peers.py "${@:2}"
      ;;
  esac
  build default
  pattern=$(IFS='|'; echo "$*")
  for program in "$BIN"/*_bench; do
    [[ -x $program && ${program##*/} =~ ${pattern:-.} ]] || continue
    found=1
    say "${program##*/}"
    "$program"
  done
  [[ $found ]] || die "no benchmark matches '$*'"
}

compare() {
  build default aft-train aft-convert engine_bench
  if [[ " $* " == *" --page"* ]]; then
    fetch_matplotlib
    export PYTHONPATH="$AFT_MATPLOTLIB"
  fi
  exec "$VENV/bin/python" -B tests/bench/compare/compare.py "$@"
}
