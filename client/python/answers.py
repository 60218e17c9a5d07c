"""Prints several answers to one prompt, which is read once: answers.py ADDRESS PROMPT N (see README.md)."""
import sys

from aft_client import AftError, Client

try:
  with Client(sys.argv[1]) as client:
    generation = client.generate(sys.argv[2], n=int(sys.argv[3]), max_tokens=64)
    for _ in generation:
      pass
except AftError as error:
  sys.exit(f"answers.py: {error.message}")
for sequence, output in enumerate(generation.outputs):
  print(f"{sequence}: {output.text}")
