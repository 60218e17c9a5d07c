#!/usr/bin/env python3
"""The Python client with real servers that it cannot reach:

  aft_client_real_test.py AFT_SERVER MODEL
"""

import os
import subprocess
import sys
import unittest

os.environ["no_grpc_proxy"] = "127.0.0.1"

try:
  from aft_client import AftError, Client, Tls
except ModuleNotFoundError as missing:
  if missing.name not in ("grpc", "google", "google.protobuf"):
    raise
  print(f"no Python with gRPC: {missing}")
  sys.exit(77)

import aft_server

PROGRAM = MODEL = ""


class RealServersTest(unittest.TestCase):

  def test_says_why_it_cannot_reach_a_server(self):
    folder = aft_server.new_folder(self)
    certificate, key = folder / "certificate", folder / "key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-out", certificate, "-keyout", key],
                   check=True, capture_output=True)
    server = aft_server.Server(folder, PROGRAM, MODEL, config=(
        f'security {{ tls {{ cert_file: "{certificate}" key_file: "{key}" }} }} http_address: "127.0.0.1:0"'))
    self.addCleanup(server.stop, hard=True)
    trusting = Tls(authorities=certificate.read_bytes())
    for address, tls, why in (
        (server.metrics_address, None, "it is an HTTP port; use the address of gRPC, by default 127.0.0.1:8500"),
        (server.http_address, trusting, "it is an HTTP port"),
        (server.http_address, None, "does it expect TLS"),
        (server.address, Tls(), "give the authority's certificate (tls=Tls(authorities=...))"),
        (server.address, trusting, "the server's certificate is for another host name")):
      with Client(address, tls=tls) as client, self.assertRaises(AftError) as caught:
        client.list_models()
      self.assertIn(why, caught.exception.message)


if __name__ == "__main__":
  PROGRAM, MODEL = sys.argv[1:3]
  unittest.main(argv=sys.argv[:1] + sys.argv[3:])
