#!/usr/bin/env python3
"""Tests an unmodified tritonclient with a server that has the models "fake" and "encoder".

  client.py HOST:PORT DESCRIPTORS

client_test.cc starts it. It makes every call of the server and provokes its errors. DESCRIPTORS is a file with
the FileDescriptorSet of proto/inference.
"""

import json
import queue
import sys
import unittest

import numpy as np
import tritonclient.grpc as triton
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException

ADDRESS = sys.argv.pop(1)
DESCRIPTORS = sys.argv.pop(1)


def tensor(name, values, datatype):
  """Makes an input. `values` is a numpy array, or a list of texts for BYTES."""
  if datatype == "BYTES":
    values = np.array([text.encode() for text in values], dtype=object)
  made = triton.InferInput(name, list(values.shape), datatype)
  made.set_data_from_numpy(values)
  return made


def prompt(text, tokens=5, **flags):
  sampling = json.dumps({"max_tokens": str(tokens), "seed": "7", "ignore_eos": True})
  inputs = [tensor("text_input", [text], "BYTES"), tensor("sampling_parameters", [sampling], "BYTES")]
  return inputs + [tensor(name, np.array([value]), "BOOL") for name, value in flags.items()]


class Stream:
  """The answers of one ModelStreamInfer as tritonclient delivers them."""

  def __init__(self, client, **options):
    self.client = client
    self.answers = queue.Queue()
    client.start_stream(lambda result, error: self.answers.put((result, error)), **options)

  def next(self):
    return self.answers.get()


class ClientTest(unittest.TestCase):

  def setUp(self):
    self.client = triton.InferenceServerClient(ADDRESS)
    self.addCleanup(self.client.close)

  def fails(self, status, text, call, *args, **kwargs):
    with self.assertRaises(InferenceServerException) as raised:
      call(*args, **kwargs)
    self.assertEqual(raised.exception.status(), "StatusCode." + status)
    self.assertIn(text, raised.exception.message())

  def test_health(self):
    self.assertTrue(self.client.is_server_live())
    self.assertTrue(self.client.is_server_ready())
    self.assertTrue(self.client.is_model_ready("fake"))
    self.assertTrue(self.client.is_model_ready("fake", "1"))
    self.assertFalse(self.client.is_model_ready("fake", "2"))
    self.assertFalse(self.client.is_model_ready("other"))

  def test_metadata(self):
    server = self.client.get_server_metadata()
    self.assertEqual(server.name, "aft-serve")
    self.assertIn("statistics", server.extensions)
    model = self.client.get_model_metadata("fake", as_json=True)
    self.assertEqual(model["versions"], ["1"])
    self.assertIn("text_input", [one["name"] for one in model["inputs"]])
    config = self.client.get_model_config("fake").config
    self.assertTrue(config.model_transaction_policy.decoupled)
    self.assertEqual(self.client.get_model_config("encoder").config.max_batch_size, 4)
    self.fails("NOT_FOUND", "other", self.client.get_model_metadata, "other")
    self.fails("NOT_FOUND", "other", self.client.get_model_config, "other")

  def test_statistics(self):
    def count():
      stats = self.client.get_inference_statistics("fake").model_stats[0]
      return stats.inference_stats.success.count, stats.inference_stats.fail.count

    before = count()
    self.client.infer("fake", prompt("a"))
    self.fails("INVALID_ARGUMENT", "text_input", self.client.infer, "fake", prompt(""))
    self.assertEqual(count(), (before[0] + 1, before[1] + 1))
    self.fails("NOT_FOUND", "other", self.client.get_inference_statistics, "other")

  def test_repository(self):
    index = self.client.get_model_repository_index()
    self.assertEqual([(m.name, m.version, m.state) for m in index.models],
                     [("fake", "1", "READY"), ("encoder", "1", "READY")])
    self.fails("PERMISSION_DENIED", "repository.control", self.client.load_model, "fake")
    self.fails("PERMISSION_DENIED", "repository.control", self.client.unload_model, "fake")

  def test_unsupported_calls(self):
    for call in (self.client.get_trace_settings, self.client.get_log_settings,
                 self.client.get_system_shared_memory_status, self.client.get_cuda_shared_memory_status):
      self.fails("UNIMPLEMENTED", "", call)

  def test_whole_texts(self):
    result = self.client.infer("fake", prompt("a prompt", return_finish_reason=True), request_id="mine",
                               outputs=[triton.InferRequestedOutput("text_output"),
                                        triton.InferRequestedOutput("finish_reason")])
    self.assertTrue(result.as_numpy("text_output")[0].startswith(b"a prompt"))
    self.assertEqual(result.as_numpy("finish_reason")[0], b"length")
    self.assertEqual(result.get_response().id, "mine")
    alone = self.client.infer("fake", prompt("a prompt", exclude_input_in_output=True))
    self.assertEqual(b"a prompt" + alone.as_numpy("text_output")[0], result.as_numpy("text_output")[0])

  def ids(self, count):
    return [tensor("input_ids", np.array([97, 98], dtype=np.int64), "INT64"),
            tensor("max_tokens", np.array([count], dtype=np.int32), "INT32"),
            tensor("seed", np.array([7], dtype=np.uint64), "UINT64"),
            tensor("ignore_eos", np.array([True]), "BOOL")]

  def test_token_ids(self):
    first = self.client.infer("fake", self.ids(6)).as_numpy("output_ids")
    self.assertEqual((first.dtype, first.shape), (np.int64, (6,)))
    done = queue.Queue()
    self.client.async_infer("fake", self.ids(6), lambda result, error: done.put((result, error)))
    result, error = done.get()
    self.assertIsNone(error)
    np.testing.assert_array_equal(result.as_numpy("output_ids"), first)

  def test_scores(self):
    result = self.client.infer("fake", [tensor("text_input", ["hello"], "BYTES"),
                                        tensor("score", np.array([True]), "BOOL")])
    self.assertEqual(result.as_numpy("token_ids").tolist(), list(b"ello"))
    scores = result.as_numpy("token_logprobs")
    self.assertAlmostEqual(float(scores.sum()), float(result.as_numpy("cumulative_logprob")[0]), places=3)

  def test_encoder(self):
    ids = np.array([[1, 2, 0], [3, 4, 5]], dtype=np.int64)
    mask = np.array([[1, 1, 0], [1, 1, 1]], dtype=np.int64)
    result = self.client.infer("encoder", [tensor("input_ids", ids, "INT64"),
                                           tensor("attention_mask", mask, "INT64")])
    hidden = result.as_numpy("last_hidden_state")
    self.assertEqual((hidden.dtype, hidden.shape), (np.float32, (2, 3, 3)))
    self.assertFalse(hidden[0, 2].any())
    np.testing.assert_allclose(result.as_numpy("embedding")[0], hidden[0, :2].mean(axis=0), rtol=1e-6)
    texts = np.array([[b"ab"], [b"c"]], dtype=object)
    made = triton.InferInput("text_input", [2, 1], "BYTES")
    made.set_data_from_numpy(texts)
    pooled = self.client.infer("encoder", [made], parameters={"pooling": "last"},
                               outputs=[triton.InferRequestedOutput("embedding")])
    self.assertEqual(pooled.as_numpy("embedding").shape, (2, 3))
    self.assertIsNone(pooled.as_numpy("last_hidden_state"))

  def test_errors_name_the_tensor(self):
    infer = self.client.infer
    self.fails("INVALID_ARGUMENT", "input_ids: must be INT64 or INT32, got FP32", infer, "fake",
               [tensor("input_ids", np.array([1], dtype=np.float32), "FP32")])
    self.fails("INVALID_ARGUMENT", "unheard_of: is no input", infer, "fake",
               prompt("a") + [tensor("unheard_of", np.array([1], dtype=np.int32), "INT32")])
    self.fails("INVALID_ARGUMENT", "sequence_id: sequences of requests are not supported", infer, "fake", prompt("a"),
               sequence_id=5)
    self.fails("DEADLINE_EXCEEDED", "", infer, "fake", prompt("a", 1000), timeout=1)
    self.fails("NOT_FOUND", "version", infer, "fake", prompt("a"), model_version="2")
    self.fails("UNIMPLEMENTED", "", infer, "fake", prompt("a"), compression_algorithm="gzip")
    self.client.infer("fake", prompt("a"), priority=1)

  def test_a_stream_of_tokens(self):
    whole = self.client.infer("fake", self.ids(8)).as_numpy("output_ids").tolist()
    stream = Stream(self.client)
    for name in ("one", "two"):
      self.client.async_stream_infer("fake", self.ids(8), request_id=name,
                                     enable_empty_final_response=True)
    tokens = {"one": [], "two": []}
    finals = 0
    while finals < 2:
      result, error = stream.next()
      self.assertIsNone(error)
      response = result.get_response()
      if response.parameters["triton_final_response"].bool_param:
        self.assertEqual(len(response.outputs), 0)
        finals += 1
      else:
        tokens[response.id] += result.as_numpy("output_ids").tolist()
    self.assertEqual(tokens, {"one": whole, "two": whole})
    self.client.async_stream_infer("fake", prompt(""))
    result, error = stream.next()
    self.assertIsNone(result)
    self.assertIn("text_input: must not be empty", error.message())
    self.client.async_stream_infer("fake", prompt("a", 1, stream=False))
    self.assertEqual(stream.next()[1], None)
    self.client.stop_stream()

  def test_a_stream_that_is_cancelled(self):
    stream = Stream(self.client)
    self.client.async_stream_infer("fake", self.ids(1_000_000))
    stream.next()
    self.client.stop_stream(cancel_requests=True)
    self.client.infer("fake", prompt("a"))

  def test_messages_match_the_clients(self):
    """Every message and field of this server exists in the client's, with the same number and type."""
    with open(DESCRIPTORS, "rb") as file:
      files = descriptor_pb2.FileDescriptorSet.FromString(file.read()).file
    ours = {message.name: message for file in files for message in file.message_type}
    theirs = {**service_pb2.DESCRIPTOR.message_types_by_name,
              **model_config_pb2.DESCRIPTOR.message_types_by_name}
    self.assertIn("ModelInferRequest", ours)

    def compare(mine, their):
      for field in mine.field:
        self.assertIn(field.name, their.fields_by_name, mine.name)
        other = their.fields_by_name[field.name]
        self.assertEqual((field.number, field.type, field.label),
                         (other.number, other.type, other.label), f"{mine.name}.{field.name}")
      for nested in mine.nested_type:
        compare(nested, their.nested_types_by_name[nested.name])

    for name, message in ours.items():
      compare(message, theirs[name])


if __name__ == "__main__":
  unittest.main()
