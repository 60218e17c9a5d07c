#!/usr/bin/env python3
"""Makes tests/parity/goldens/gpt2_hub/, which is the model of goldens/gpt2 in BF16 as transformers 5 saves it: shards
with an index, and tokenizer.json alone. Also saves what transformers computes with these weights in fp32.

  python3.11 -m venv /tmp/hub
  /tmp/hub/bin/pip install typing_extensions sympy networkx jinja2 filelock fsspec numpy pyyaml regex packaging tqdm \
    safetensors 'tokenizers==0.23.3' huggingface-hub
  /tmp/hub/bin/pip install --no-deps torch==2.11.0 nvidia-cufile==1.15.1.6 nvidia-cusparselt-cu13==0.8.0 \
    nvidia-nvshmem-cu13==3.4.5 transformers==5.23.0
  /tmp/hub/bin/python tests/parity/make_hub_goldens.py
"""

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, GPT2LMHeadModel

GOLDENS = Path(__file__).resolve().parent / "goldens"
TEXT = "the théâtre, on\nthe hill"


def main():
  out = GOLDENS / "gpt2_hub"
  shutil.rmtree(out, ignore_errors=True)
  model = GPT2LMHeadModel.from_pretrained(GOLDENS / "gpt2").eval().to(torch.bfloat16)
  model.save_pretrained(out, max_shard_size="40KB")
  tokenizer = AutoTokenizer.from_pretrained(GOLDENS / "gpt2")
  tokenizer.save_pretrained(out)
  for file in out.iterdir():
    file.chmod(0o644)
  tokens = torch.tensor(tokenizer(TEXT).input_ids)
  with torch.no_grad():
    log_probs = model.float()(tokens[None]).logits[0].log_softmax(-1)
  save_file({"tokens": tokens, "package": log_probs}, GOLDENS / "gpt2_hub.cases.safetensors",
            {"package": "transformers", "text": TEXT})


if __name__ == "__main__":
  main()
