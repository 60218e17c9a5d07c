"""Prints the log-probability of each token of a text: score.py ADDRESS TEXT (see README.md)."""
import sys

from aft_client import Client

with Client(sys.argv[1]) as client:
  scores = client.score(sys.argv[2])
for token, scored in zip(scores.token_ids, scores.logprobs):
  print(token, scored.logprob)
print("perplexity", scores.perplexity)
