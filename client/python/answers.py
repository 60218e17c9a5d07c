"""Prints several answers to one prompt, which is read once: answers.py ADDRESS PROMPT N (see README.md)."""
import sys

import grpc
from aft.v1 import inference_pb2, inference_pb2_grpc

request = inference_pb2.GenerateRequest(text=sys.argv[2], n=int(sys.argv[3]),
                                        stop={"max_tokens": 64})
texts = [""] * request.n
try:
  with grpc.insecure_channel(sys.argv[1]) as channel:
    for event in inference_pb2_grpc.InferenceServiceStub(channel).Generate(request):
      texts[event.sequence] += event.delta.text
except grpc.RpcError as error:
  sys.exit(f"answers.py: {error.details()}")
for sequence, text in enumerate(texts):
  print(f"{sequence}: {text}")
