#!/usr/bin/env bash
# NVIDIA's perf_analyzer and genai-perf, unmodified, against a server, over gRPC and (genai-perf) over HTTP:
# ./dev bench triton. Needs root.
#
# Their wheels need a newer C library than Debian 12 has, so they run in a Debian 13 below the cache
# (1.6 GB), made once with debootstrap and pip. Loopback is shared.
#
#   triton_tools.sh install ROOT             makes that Debian
#   triton_tools.sh measure ROOT BIN MODEL   starts BIN/aft-server with MODEL and measures it
set -euo pipefail
readonly ROOT=$2

# inside COMMAND...: in that Debian, as root.
inside() {
  # shellcheck disable=SC2016
  unshare --mount bash -c 'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" "$@"' \
    "$ROOT" /usr/bin/env -i HOME=/root HF_HUB_OFFLINE=1 PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PATH=/opt/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

install_tools() {
  local mirror
  # shellcheck disable=SC2016
  mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE)' | sed -n 's/ bookworm$//p' | sort -u | head -n 1)
  rm -rf "$ROOT"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates trixie "$ROOT" "$mirror"
  # A host behind a proxy has the proxy's certificate and settings, so these are copied.
  cp -L /etc/ssl/certs/ca-certificates.crt "$ROOT/etc/ssl/certs/"
  cp -L /etc/resolv.conf /etc/hosts "$ROOT/etc/"
  if [[ -e /etc/pip.conf ]]; then cp /etc/pip.conf "$ROOT/etc/"; fi
  inside python3 -m venv /opt/venv
  inside pip install --disable-pip-version-check --no-cache-dir -q perf-analyzer==2.60.0 genai-perf==0.0.16
  # A tokenizer in Hugging Face's format whose tokens are bytes, as the shipped model's are.
  inside python3 -c '
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=alphabet[0], eos_token=alphabet[1])
fast.save_pretrained("/opt/tokenizer")'
}

if [[ $1 == install ]]; then
  install_tools
  exit
fi

readonly BIN=$3 MODEL=$4 NAME=${4##*/}
folder=$(mktemp -d)
"$BIN/aft-server" --model="$MODEL" --weight_format=int8 --listen_address=127.0.0.1:0 --metrics_address=127.0.0.1:0 \
  --http_address=127.0.0.1:0 --ready_file="$folder/ready" 2>"$folder/log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
until [[ -e $folder/ready ]]; do kill -0 "$server" || { cat "$folder/log"; exit 1; }; sleep 0.1; done
{ read -r address; read -r _; read -r http; } <"$folder/ready"

cat >"$ROOT/opt/prompt.json" <<'END'
{"data": [{"text_input": ["It is a truth universally acknowledged, that"], "stream": [true],
           "exclude_input_in_output": [true],
           "sampling_parameters": ["{\"max_tokens\": 64, \"ignore_eos\": true}"]}]}
END
for streams in 1 8 64; do
  inside perf_analyzer -m "$NAME" -u "$address" -i grpc --async --streaming --input-data /opt/prompt.json \
    --concurrency-range "$streams" --measurement-interval 5000 --stability-percentage 20
done
# genai ADDRESS ARGUMENT...: 100 tokens in, 64 out, at 1, 8 and 64 streams.
genai() {
  local streams
  for streams in 1 8 64; do
    inside genai-perf profile -m "$NAME" -u "$1" "${@:2}" --streaming --tokenizer /opt/tokenizer \
      --synthetic-input-tokens-mean 100 --synthetic-input-tokens-stddev 0 --output-tokens-mean 64 \
      --num-dataset-entries 64 --concurrency "$streams" --request-count $((200 + 20 * streams)) \
      --artifact-dir /tmp/genai-perf
  done
}
genai "$address" --endpoint-type kserve --backend vllm --output-tokens-mean-deterministic
# Over HTTP, genai-perf cannot ask for a minimum number of tokens.
genai "$http" --endpoint-type completions --extra-inputs ignore_eos:true
genai "$http" --endpoint-type chat --extra-inputs ignore_eos:true

kill "$server"
wait "$server"
# The tools must have reached the server, and it must not have refused any of their requests.
grep -q 'event=request.done' "$folder/log"
! grep 'event=request.done' "$folder/log" | grep -v 'code=OK'
