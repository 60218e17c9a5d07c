"""Streams a completion: generate.py ADDRESS PROMPT [OPTION=NUMBER ...], for example temperature=0.7
min_p=0.05: the fields of SamplingOptions. README.md says how to make the stubs."""
import json
import sys

import grpc
from aft.v1 import inference_pb2, inference_pb2_grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    options = dict(option.split("=") for option in sys.argv[3:])
    sampling = {name: json.loads(number) for name, number in options.items()}
    request = inference_pb2.GenerateRequest(text=sys.argv[2], sampling=sampling,
                                            stop={"max_tokens": 64})
    for response in inference_pb2_grpc.InferenceServiceStub(channel).Generate(request):
        print(response.delta.text, end="", flush=True)
print()
