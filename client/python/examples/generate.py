"""Streams a completion: generate.py ADDRESS PROMPT [OPTION=NUMBER ...], for example temperature=0.7
top_p=0.9: the fields of Sampling."""
import json
import sys

from aft_client import AftError, Client, Delta, Sampling

sampling = {name: json.loads(number) for name, number in (option.split("=") for option in sys.argv[3:])}
try:
  with Client(sys.argv[1]) as client:
    for event in client.generate(sys.argv[2], max_tokens=64, sampling=Sampling(**sampling)):
      if isinstance(event, Delta):
        print(event.text, end="", flush=True)
except AftError as error:
  sys.exit(f"generate.py: {error}")
print()
