"""Prints the log-probability of each token of a text: score.py ADDRESS TEXT (see README.md)."""
import sys

import grpc
from aft.v1 import inference_pb2, inference_pb2_grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    request = inference_pb2.ScoreRequest(text=sys.argv[2])
    for response in inference_pb2_grpc.InferenceServiceStub(channel).Score(request):
        for token, scored in zip(response.chunk.token_ids, response.chunk.logprobs):
            print(token, scored.logprob)
        if response.HasField("finished"):
            print("perplexity", response.finished.perplexity)
