"""Streams a completion: generate.py ADDRESS PROMPT (README.md says how to make the stubs)."""
import sys

import grpc
from aft.v1 import inference_pb2, inference_pb2_grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    request = inference_pb2.GenerateRequest(text=sys.argv[2], stop={"max_tokens": 64})
    for response in inference_pb2_grpc.InferenceServiceStub(channel).Generate(request):
        print(response.delta.text, end="", flush=True)
print()
