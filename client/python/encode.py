"""Prints the mean vector of a text under an encoder: encode.py ADDRESS TEXT (see README.md)."""
import sys

import grpc
from aft.v1 import inference_pb2, inference_pb2_grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    request = inference_pb2.EncodeRequest(text=sys.argv[2], pooling=inference_pb2.POOLING_MEAN)
    for response in inference_pb2_grpc.InferenceServiceStub(channel).Encode(request):
        print(*response.vectors.values, end="")
print()
