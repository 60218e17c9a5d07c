"""Prints the mean vector of a text under an encoder: encode.py ADDRESS TEXT (see README.md)."""
import sys

from aft_client import Client, Pooling

with Client(sys.argv[1]) as client:
  print(*client.encode(sys.argv[2], pooling=Pooling.MEAN).vectors[0])
