#!/usr/bin/env python3
"""Tests the calls of the Python client against a server in this process. The contract (contract/scenario.proto) has the
tests of streams that break."""

import asyncio
import dataclasses
import itertools
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

from aft_fake_server import ClosedPort, Code, Server, response, started
import grpc
import aft_client
from aft.v1 import generation_options_pb2, inference_pb2, tokens_pb2
from aft_client import AftError, Delta, Finished, ModelStatistics, Sampling, Started, State, Timing
from aft_client import _channel, _resumable, _wire as wire
from aft_client._errors import explained
from google.protobuf.descriptor import FieldDescriptor

EXAMPLE = Path(__file__).resolve().parents[3] / "client" / "python" / "examples" / "generate.py"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class ClientTest(unittest.TestCase):

  def server(self):
    return Server(self)

  def client(self, *servers, **options):
    options.setdefault("max_attempts", 1)  # gRPC must not send calls again
    client = aft_client.Client([server.address for server in servers], **options)
    self.addCleanup(client.close)
    return client


class CallsTest(ClientTest):

  def test_the_back_off_doubles_up_to_a_limit_and_is_shortened_at_random(self):
    self.assertEqual([_resumable.back_off(tries, 0) for tries in range(9)], [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5])
    self.assertEqual(_resumable.back_off(10**6, 0), 5)
    self.assertAlmostEqual(_resumable.back_off(2, 0.5), 0.15)

  def test_every_described_option_is_a_typed_argument(self):
    options = generation_options_pb2.DESCRIPTOR.GetOptions().Extensions[generation_options_pb2.generation_option]
    kinds = {FieldDescriptor.CPPTYPE_FLOAT: "float", FieldDescriptor.CPPTYPE_BOOL: "bool",
             FieldDescriptor.CPPTYPE_STRING: "str"}
    arguments = {"sampling": {}, "stop": {}, "output": {}, "": {}}
    for option in options:
      part, _, name = option.field.rpartition(".")
      message = inference_pb2.GenerateRequest.DESCRIPTOR
      field = (message.fields_by_name[part].message_type if part else message).fields_by_name[name]
      kind = kinds.get(field.cpp_type, "int")
      if field.message_type:
        kind = "Mapping[int, float]"
      elif field.label == field.LABEL_REPEATED:
        kind = f"Sequence[{kind}]"
      # A list outside of Sampling has the name that the Open Inference Protocol uses.
      name = option.oip_name if part == "stop" and field.label == field.LABEL_REPEATED else name
      arguments[part][name] = f"Optional[{kind}]" if part == "sampling" or field.has_presence else kind
    self.assertEqual({field.name: field.type for field in dataclasses.fields(Sampling)}, arguments["sampling"])
    for call in (aft_client.Client.generate, aft_client.Client.complete):
      annotations = call.__annotations__
      for name, kind in {**arguments["stop"], **arguments["output"], **arguments[""]}.items():
        self.assertEqual(annotations.get(name), kind, name)

  def test_sends_every_option(self):
    server = self.server()
    examples = {FieldDescriptor.CPPTYPE_FLOAT: 0.5, FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
                FieldDescriptor.CPPTYPE_BOOL: True, FieldDescriptor.CPPTYPE_STRING: "seven",
                FieldDescriptor.CPPTYPE_MESSAGE: {5: -1.5, 6: 100}}
    lists = {FieldDescriptor.CPPTYPE_UINT32: [5, 6], FieldDescriptor.CPPTYPE_STRING: ["five", "six"]}
    sampling = Sampling(**{
        field.name: lists[field.cpp_type] if field.label == field.LABEL_REPEATED and field.cpp_type in lists
        else examples.get(field.cpp_type, 3) for field in inference_pb2.SamplingOptions.DESCRIPTOR.fields})
    client = self.client(server, token="secret")
    options = {"sampling": sampling, "stop": ["END"], "stop_token_ids": [10], "include_stop_string": True,
               "ignore_eos": True, "min_tokens": 3, "echo": True, "top_logprobs": 2, "prompt_logprobs": True,
               "priority": aft_client.Priority.BATCH, "previous": b"sealed", "store": 60_000, "initial_state": "tuned",
               "cache_salt": "user 1"}
    client.generate(b"\xff", **options, request_id="mine", traceparent=TRACEPARENT).text()
    self.assertEqual(server.requests[0], inference_pb2.GenerateRequest(
        raw=b"\xff", sampling=vars(sampling), stop={"strings": ["END"], "token_ids": [10], "include_stop_string": True,
                                                    "ignore_eos": True, "min_tokens": 3},
        output={"top_logprobs": 2, "echo": True}, priority=3, previous={"state": b"sealed"}, store={"ttl_ms": 60_000},
        initial_state="tuned", cache_salt="user 1", prompt_logprobs=True, resumable=True))
    self.assertEqual(server.metadata[0]["authorization"], "Bearer secret")
    self.assertEqual(server.metadata[0]["x-request-id"], "mine")
    self.assertEqual(server.metadata[0]["traceparent"], TRACEPARENT)
    client.generate([1, 2]).text()
    self.assertNotIn("traceparent", server.metadata[1])
    self.assertEqual(server.requests[1], inference_pb2.GenerateRequest(tokens={"ids": [1, 2]}, stop={},
                                                                       resumable=True))
    client.generate([1, 2], store=0).text()  # for no time, which a server refuses
    self.assertTrue(server.requests[2].store.HasField("ttl_ms"))
    client.complete(b"\xff", **options)
    server.requests[3].resumable = True
    self.assertEqual(server.requests[3], server.requests[0])

  def test_events_are_values(self):
    server = self.server()
    server.answer = lambda request, context: iter([
        started(numerics="fp32"), response(delta={"token_ids": [97], "text": "a", "logprobs": [
            {"logprob": -1, "top": [{"token_id": 5, "logprob": -2}]}]}),
        response(finished={"reason": 2, "stop_string": "x",
                           "timings": {"queue_us": 1, "first_token_us": 2, "total_us": 3},
                           "usage": {"prompt_tokens": 5, "generated_tokens": 1, "scored_tokens": 3, "cache_miss": 3,
                                     "diverged_at": 4},
                           "state": {"id": "s", "model": "m", "tokens": 6, "bytes": 9, "ttl_ms": 8, "pending": True,
                                     "history": 7}})])
    generation = self.client(server).generate("hello")
    self.assertEqual(list(generation), [
        Started("m", "", 7, 5, numerics="fp32"), Delta(0, (97,), "a", (aft_client.TokenLogprobs(-1, ((5, -2),)),)),
        Finished(aft_client.FinishReason.STOP, stop_string="x", timings=aft_client.Timings(1, 2, 3),
                 usage=aft_client.Usage(5, 1, 3, cache_miss=aft_client.CacheMiss.DIVERGED, diverged_at=4),
                 state=State("s", "m", 6, 9, 8, True, 7))])
    self.assertEqual(generation.started.seed, 7)
    self.assertEqual(generation.finished.state.id, "s")

  def test_the_prompt_is_echoed(self):
    server = self.server()
    server.answer = lambda request, context: iter([
        started(prompt={"token_ids": [5, 6], "text": "It"}), response(finished={"reason": 1})])
    begun = next(iter(self.client(server).generate("It", echo=True)))
    self.assertEqual((begun.prompt_ids, begun.prompt), ((5, 6), "It"))

  def test_the_prompt_is_scored(self):
    server = self.server()
    scores = {"first_index": 1, "token_ids": [6], "logprobs": [{"logprob": -1}]}
    server.answer = lambda request, context: iter([
        started(), response(prompt_scores=scores), response(finished={"reason": 3})])
    expected = aft_client.PromptScores(1, (6,), (aft_client.TokenLogprobs(-1),))
    self.assertEqual(list(self.client(server).generate("It", max_tokens=0, prompt_logprobs=True))[1], expected)
    self.assertEqual(aft_client.Answer.of(inference_pb2.Answer(prompt_scores=scores)).prompt_scores, expected)

  def test_completes(self):
    server = self.server()
    done = self.client(server, token="secret").complete("hello", n=2, max_tokens=3, store=True, min_tokens=1)
    self.assertEqual(server.requests[0], inference_pb2.GenerateRequest(
        text="hello", n=2, stop={"max_tokens": 3, "min_tokens": 1}, store={}))
    self.assertEqual(server.metadata[0]["authorization"], "Bearer secret")
    self.assertEqual((done.text, done.started.seed, done.answers[1].token_ids), ("abc", 7, (100,)))
    self.assertEqual(done.answers[0].finished.limit, "stop.max_tokens=3")
    self.assertEqual(done.answers[1].finished.state.id, "s")
    self.assertEqual(done.answers[1].logprobs, (aft_client.TokenLogprobs(-1),))

  def test_tokens(self):
    server = self.server()
    client = self.client(server)
    self.assertEqual(client.tokenize("ab\u00e9", model="m"), aft_client.Tokens((97, 98, 300), (1, 2, 4)))
    self.assertEqual(server.requests[0], tokens_pb2.TokenizeRequest(model="m", text="ab\u00e9"))
    client.tokenize(b"\xff")
    self.assertEqual(server.requests[1], tokens_pb2.TokenizeRequest(raw=b"\xff"))
    self.assertEqual(client.detokenize([97, 255], model="m"), b"a\xff")
    self.assertEqual(server.requests[2], tokens_pb2.DetokenizeRequest(model="m", token_ids=[97, 255]))

  def test_scores_and_encodes(self):
    server = self.server()
    client = self.client(server)
    scores = client.score("abc", top_logprobs=1, previous="p", store=True, priority=aft_client.Priority.INTERACTIVE)
    self.assertEqual((scores.token_ids, [one.logprob for one in scores.logprobs]), ((98, 99), [-1, -2]))
    self.assertEqual((scores.logprobs[0].top, scores.perplexity, scores.state.id), (((5, -0.5),), 4.5, "s"))
    self.assertEqual(server.requests[0], inference_pb2.ScoreRequest(
        text="abc", output={"top_logprobs": 1}, previous={"state_id": "p"}, store={}, priority=1, resumable=True))
    server.answer_score = lambda request, context: iter(map(lambda one: inference_pb2.ScoreResponse(**one), [
        {"started": {"tokens": 4}}, {"chunk": {"first_index": 3, "token_ids": [100], "logprobs": [{"logprob": -1}]}},
        {"finished": {"scored_tokens": 1, "logprob": -1, "usage": {"prompt_tokens": 4, "cached_tokens": 2}}}]))
    scores = client.score("abcd", context_tokens=3, cache_salt="user 1", initial_state="tuned")
    self.assertEqual((scores.token_ids, scores.usage.cached_tokens, scores.state), ((100,), 2, None))
    self.assertEqual(server.requests.pop(), inference_pb2.ScoreRequest(
        text="abcd", output={"top_logprobs": 0}, context_tokens=3, cache_salt="user 1", initial_state="tuned",
        resumable=True))
    encoded = client.encode("ab", pooling=aft_client.Pooling.MEAN, normalize=True, priority=aft_client.Priority.BATCH)
    self.assertEqual((encoded.vectors, encoded.tokens), (((1, 0.5), (-2.5, 3)), 2))
    self.assertEqual(server.requests[1], inference_pb2.EncodeRequest(
        text="ab", pooling=1, normalize=True, priority=3))

  def test_several_texts(self):
    server = self.server()
    server.answer_score = lambda request, context: iter(map(lambda one: inference_pb2.ScoreResponse(**one), [
        {"started": {"tokens": 5, "text_tokens": [3, 2]}},
        {"index": 1, "chunk": {"first_index": 1, "token_ids": [99], "logprobs": [{"logprob": -2}]}},
        {"index": 1, "finished": {"scored_tokens": 1, "logprob": -2, "state": {"id": "s"}}},
        {"chunk": {"first_index": 1, "token_ids": [98, 97], "logprobs": [{"logprob": -1}, {"logprob": -3}]}},
        {"finished": {"scored_tokens": 2, "logprob": -4}}]))
    client = self.client(server)
    scores = client.score_all(["abc", b"\xff", [1, 2]][:2], previous="p", store=True, model_version="3",
                              top_logprobs=4)
    self.assertEqual([(one.token_ids, one.logprob) for one in scores], [((98, 97), -4), ((99,), -2)])
    self.assertEqual(scores[1].state.id, "s")
    self.assertEqual(server.requests[0], inference_pb2.ScoreRequest(
        texts=[{"text": "abc"}, {"raw": b"\xff"}], output={"top_logprobs": 4}, previous={"state_id": "p"}, store={},
        model_version="3", resumable=True))
    server.answer_encode = lambda request, context: iter(map(lambda one: inference_pb2.EncodeResponse(**one), [
        {"started": {"width": 2, "tokens": 3, "text_tokens": [1, 2]}},
        {"index": 1, "vectors": {"values": [1, 2]}},
        {"index": 1, "vectors": {"first_index": 1, "values": [3, 4]}},
        {"index": 1, "finished": {}}, {"vectors": {"values": [5, 6]}}, {"finished": {}}]))
    encoded = client.encode_all([[7], "bc"], normalize=True, model_version="2", priority=aft_client.Priority.BATCH)
    self.assertEqual([(one.vectors, one.tokens) for one in encoded], [(((5, 6),), 1), (((1, 2), (3, 4)), 2)])
    self.assertEqual(server.requests[1], inference_pb2.EncodeRequest(
        texts=[{"tokens": {"ids": [7]}}, {"text": "bc"}], normalize=True, model_version="2", priority=3))
    client.score_all(["a", "b"], initial_state="tuned", priority=aft_client.Priority.INTERACTIVE)
    self.assertEqual((server.requests[2].initial_state, server.requests[2].priority), ("tuned", 1))
    with self.assertRaisesRegex(AftError, "Started is of other texts"):
      client.encode_all(["a", "b", "c"])
    self.assertEqual((client.score_all([]), client.encode_all([])), ([], []))
    with self.assertRaises(ValueError):
      client.generate("hello", n=0)

  def test_a_models_version_is_named(self):
    server = self.server()
    client = self.client(server)
    client.generate("hello", model="m", model_version="2").text()
    client.complete("hello", model_version="2")
    client.tokenize("hello", model_version="2")
    client.detokenize([1], model_version="2")
    client.score("abc", model_version="2")
    client.encode("ab", model_version="2")
    self.assertEqual([request.model_version for request in server.requests], ["2"] * 6)

  def test_other_services_get_the_version_too(self):
    server = self.server()
    client = self.client(server)
    tensor = aft_client.Tensor("x", "UINT8", [2], [7, 255])
    client.get_model("m", model_version="2")
    client.metadata("m", model_version="2")
    client.statistics("m", model_version="2")
    client.infer("m", [tensor], model_version="2", outputs=["y"], parameters={"a": True, "b": -1, "c": 2**64 - 1})
    infer = wire.oip.ModelInferRequest(
        model_name="m", model_version="2", inputs=[{"name": "x", "datatype": "UINT8", "shape": [2]}],
        outputs=[{"name": "y"}], raw_input_contents=[b"\x07\xff"])
    infer.parameters["a"].bool_param = True
    infer.parameters["b"].int64_param = -1
    infer.parameters["c"].uint64_param = 2**64 - 1
    expected = [
        ("/aft.v1.ModelService/Get", wire.aft.GetRequest(name="m", version="2")),
        ("/inference.GRPCInferenceService/ModelMetadata", wire.oip.ModelMetadataRequest(name="m", version="2")),
        ("/inference.GRPCInferenceService/ModelStatistics", wire.oip.ModelStatisticsRequest(name="m", version="2")),
        ("/inference.GRPCInferenceService/ModelInfer", infer)]
    self.assertEqual([(method, type(one[1]).FromString(request)) for (method, request), one in
                      zip(server.others.calls, expected)], expected)

  def test_models_and_tensors_are_values(self):
    model = aft_client.Model.of(wire.aft.Model(name="m", state=99, labels=["a", "b"], initial_states=["tuned"]))
    self.assertEqual((model.state, model.load, model.chat_format), (aft_client.ModelState.UNSPECIFIED, None, None))
    self.assertEqual((model.labels, model.initial_states), (("a", "b"), ("tuned",)))
    integers = [(f"{kind}INT{bits}", (low, low + 2**bits - 1), bits // 8) for bits in (8, 16, 32, 64)
                for kind, low in (("", -2**(bits - 1)), ("U", 0))]
    for datatype, values, raw in (
        ("FP16", (0.5, -2), b"\x00\x38\x00\xc0"), ("FP32", (0.5, -2), b"\0\0\0\x3f\0\0\0\xc0"),
        ("FP64", (0.5, -2), bytes(6) + b"\xe0\x3f" + bytes(7) + b"\xc0"), ("BOOL", (False, True), b"\0\1"),
        ("BYTES", (b"", b"ab"), b"\0\0\0\0\2\0\0\0ab"),
        *((name, ends, b"".join((one % 256**size).to_bytes(size, "little") for one in ends))
          for name, ends, size in integers)):
      tensor = aft_client.Tensor("x", datatype, (2,), values)
      self.assertEqual((tensor.raw(), aft_client.Tensor.of(tensor, raw)), (raw, tensor))
    with self.assertRaisesRegex(ValueError, "must be given as bytes"):
      aft_client.Tensor("x", "BF16", (1,), [1]).raw()
    answer = wire.oip.ModelInferResponse(outputs=[{"name": "y"}])
    answer.parameters["a"].SetInParent()
    answer.parameters["b"].bool_param = False
    with self.assertRaisesRegex(AftError, "no raw contents"):
      aft_client.Inference.of(answer)
    answer.raw_output_contents.append(b"")
    self.assertEqual(aft_client.Inference.of(answer).parameters, {"b": False})

  def test_enums_have_the_numbers_of_the_protocol(self):
    for own in (aft_client.ModelState, aft_client.Task, aft_client.FinishReason, aft_client.Pooling,
                aft_client.Priority, aft_client.CacheMiss):
      enum = wire._POOL.FindEnumTypeByName(f"aft.v1.{own.__name__}")
      names = {value.number: value.name for value in enum.values}
      for one in own:
        if one > 0:  # 0 has names of its own
          self.assertTrue(names[one].endswith(f"_{one.name}"), one)

  def test_errors_have_what_the_server_says(self):
    server = self.server()
    client = self.client(server, max_resumes=0)

    def refuse(trailers, message="full"):
      def answer(request, context):
        context.send_initial_metadata((("x-request-id", "initial"),))
        context.set_trailing_metadata(trailers)
        context.abort(Code.UNAVAILABLE, message)
        yield

      server.answer = answer
      with self.assertRaises(AftError) as caught:
        client.generate("hello").text()
      return caught.exception

    refused = refuse((("x-request-id", "mine"), ("grpc-retry-pushback-ms", "2500")))
    self.assertEqual((refused.request_id, refused.retry_after_ms, refused.of_server), ("mine", 2500, True))
    broken = refuse(())
    self.assertEqual((broken.request_id, broken.retry_after_ms, broken.of_server), ("initial", None, False))
    said = "Failed to connect: Connection refused"
    self.assertEqual(refuse((("x-request-id", "mine"),), said).message, said)

  def test_a_refused_call_is_sent_again_by_default(self):
    server = self.server()

    def refuse(request, context):
      server.answer = server.say
      context.set_trailing_metadata((("grpc-retry-pushback-ms", "0"),))
      context.abort(Code.UNAVAILABLE, "draining")
      yield

    server.answer = refuse
    with aft_client.Client(server.address) as client:
      self.assertEqual(client.generate("hello").text(), "a")

  def break_then_refuse(self, server, milliseconds):
    """Lets a stream break. Then its continuation is refused once, for this time."""
    def abort(context, message, *trailers):
      context.set_trailing_metadata(trailers)
      context.abort(Code.UNAVAILABLE, message)

    def refuse(request, context):
      server.answer = server.say
      yield from abort(context, "full", ("x-request-id", "a"), ("grpc-retry-pushback-ms", str(milliseconds)))

    def answer(request, context):
      server.answer = refuse
      yield started(fingerprint=1)
      abort(context, "broken")

    server.answer = answer
    server.say = lambda request, context: iter([started(fingerprint=1), response(finished={"reason": 3})])

  def test_a_stream_is_resumed_when_the_server_says(self):
    server, resumed = self.server(), []
    self.break_then_refuse(server, 300)
    list(self.client(server).generate("hello", on_resumed=resumed.append))
    self.assertTrue(0.3 <= resumed[0].until_sent < 100, resumed)

  def test_the_timeout_is_that_of_all_calls_together(self):
    for n in (1, 2):
      server = self.server()
      self.break_then_refuse(server, 0)
      # This clock is 1000 s later each time it is read.
      with mock.patch.object(_resumable, "time", mock.Mock(monotonic=itertools.count(step=1000).__next__)):
        list(self.client(server, timeout=20_000).generate("hello", n=n))
      self.assertGreaterEqual(len(server.seconds), 3)
      self.assertLess(max(server.seconds[1:]), 17_500)  # gRPC rounds it up

  def test_a_state_that_does_not_fit_into_a_request_is_not_collected(self):
    server, size = self.server(), 1 << 20
    chunks = [response(hand_over={"chunk": bytes(size)})] * 8
    server.answer = lambda request, context: iter([started(fingerprint=1), *chunks, response(finished={"reason": 3})])
    generation = self.client(server).generate("hello")
    list(generation)
    self.assertEqual(len(generation._hand_over), _resumable.MAX_REQUEST_BYTES + size)

  def test_closing_ends_the_pause_of_an_asynchronous_stream(self):
    server = self.server()
    self.break_then_refuse(server, 3_600_000)

    async def call():
      async with aft_client.AsyncClient(server.address, timeout=None, max_attempts=1) as client:
        generation = client.generate("hello")
        reader = asyncio.create_task(generation.text())
        while len(server.requests) < 2:
          await asyncio.sleep(0.01)
        generation.close()
        self.assertEqual(await reader, "")

    asyncio.run(call())

  def test_asynchronous_calls(self):
    server = self.server()
    server.answer_encode = lambda request, context: context.abort(Code.NOT_FOUND, "no such model")

    async def call():
      async with aft_client.AsyncClient(server.address, max_attempts=1) as client:
        self.assertEqual([one.id async for one in client.list_states()], ["a", "b", "c"])
        with self.assertRaisesRegex(AftError, "no such model"):
          await client.encode("ab")

    asyncio.run(call())

  def test_the_timeout_of_a_call_wins(self):
    server = self.server()
    for timeout, own, least, most in ((1000, None, 500, 1000), (1000, 100, 1, 100), (100, 1000, 500, 1000)):
      client = self.client(server, timeout=timeout)
      client.generate("hello", timeout=own).text()
      client.complete("hello", timeout=own)
      for seconds in server.seconds[-2:]:
        self.assertTrue(least < seconds <= 1.02 * most, seconds)  # gRPC rounds it up

  def test_only_a_server_that_serves_gets_generations(self):
    server = self.server()
    server.others.serves = False
    client = self.client(server)
    self.assertEqual(client.list_models(), [])
    with self.assertRaises(AftError) as caught:
      client.generate("hello").text()
    self.assertEqual((caught.exception.code, server.requests), (Code.UNAVAILABLE, []))

  def test_both_sides_have_certificates(self):
    with tempfile.TemporaryDirectory() as folder:
      files = [Path(folder, name) for name in ("certificate", "key")]
      subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                      "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout",
                      files[1]], check=True, capture_output=True)
      certificate, key = (file.read_bytes() for file in files)
    server = Server(self, grpc.ssl_server_credentials([(key, certificate)], certificate, require_client_auth=True))
    own = aft_client.Tls(authorities=certificate, certificate=certificate, key=key)
    self.assertEqual(self.client(server, tls=own).generate("hello").text(), "a")
    with self.assertRaises(AftError):
      self.client(server, tls=dataclasses.replace(own, certificate=None, key=None)).generate("hello").text()

  def test_states(self):
    server = self.server()
    client = self.client(server)
    self.assertEqual(client.get_state("s"), State("s", "", 3, 0, 0, True))
    with self.assertRaises(AftError) as caught:
      client.get_state("t")
    self.assertEqual(caught.exception.code, Code.NOT_FOUND)
    self.assertEqual([one.id for one in client.list_states()], ["a", "b", "c"])
    client.delete_state("s")
    self.assertEqual(server.requests.pop().id, "s")
    self.assertEqual(client.export_state("s"), b"sealed")
    big = bytes(600_000)
    self.assertEqual(client.import_state("m", big).id, "new")
    self.assertEqual([(one.model, one.bytes) for one in server.requests], [("m", 600_000), ("", 0), ("", 0)])
    self.assertEqual(b"".join(one.chunk for one in server.requests), big)

  def test_statistics_of_batches(self):
    timing = {"count": 3, "ns": 40}
    statistics = ModelStatistics.of(wire.oip.ModelStatistics(
        name="m", version="2", inference_stats={"queue": timing}, batch_stats=[
            {"batch_size": 8, "compute_infer": timing}, {"batch_size": 9}]))
    self.assertEqual((statistics.version, statistics.queue, statistics.fail), ("2", Timing(3, 40), Timing(0, 0)))
    self.assertEqual([(one.batch_size, one.compute_infer) for one in statistics.batch_stats],
                     [(8, Timing(3, 40)), (9, Timing(0, 0))])

  def test_a_server_that_is_not_there(self):
    with self.assertRaises(AftError) as caught:
      self.client(ClosedPort(self)).generate("hello").text()
    self.assertEqual(caught.exception.code, Code.UNAVAILABLE)
    self.assertEqual(caught.exception.message, "cannot reach the server: connection refused; is the server running?")

  def test_a_server_without_tls(self):
    with self.assertRaises(AftError) as caught:
      self.client(self.server(), tls=aft_client.Tls()).generate("hello").text()
    self.assertEqual(caught.exception.message, "cannot reach the server: the server does not speak TLS; leave out tls")

  def test_what_other_releases_of_grpc_say(self):
    for said, why in (
        ("INTERNAL: ipv4:127.0.0.1:8080: Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got frame "
         "type 80) (Trying to connect an http1.x server (HTTP status 400))", "it is an HTTP port"),
        ("UNKNOWN: Tls handshake failed: OPENSSL_internal:TLSV1_ALERT_NO_APPLICATION_PROTOCOL", "it is an HTTP port"),
        ("UNKNOWN: Tls handshake failed: OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: self signed", "no authority"),
        ("UNAUTHENTICATED: Hostname Verification Check failed.", "the server's certificate is for another host name"),
        ("DNS resolution failed for x.invalid:1: C-ares status is not ARES_SUCCESS", "the host name does not resolve"),
        ("Socket closed", "the server closed the connection;"), ("FD Shutdown: Timeout", "no answer in gRPC's protocol")):
      self.assertIn(f"cannot reach the server: {why}", explained("connections to all backends failing; last error: " + said))
    self.assertIn("cannot use the certificates or the key", explained("empty address list: "))

  def test_the_example_prints_text_as_it_comes_and_sends_options(self):
    server, printed = self.server(), threading.Event()

    def answer(request, context):
      yield from itertools.islice(server.say(request, context), 2)
      printed.wait()
      context.abort(Code.INVALID_ARGUMENT, "sampling.seed: bad")

    server.answer = answer
    with subprocess.Popen([sys.executable, EXAMPLE, server.address, "It is", "temperature=0.5", "top_k=40",
                           f"seed={2**64 - 1}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as example:
      self.assertEqual(example.stdout.read(1), "a")
      printed.set()
      self.assertIn("generate.py: INVALID_ARGUMENT: sampling.seed: bad", example.stderr.read())
    self.assertNotEqual(example.returncode, 0)
    self.assertEqual((server.requests[0].text, server.requests[0].stop.max_tokens), ("It is", 64))
    self.assertEqual(server.requests[0].sampling, inference_pb2.SamplingOptions(temperature=0.5, top_k=40, seed=2**64 - 1))

  def test_sampling_is_not_a_dictionary(self):
    with self.assertRaisesRegex(TypeError, "sampling must be a Sampling"):
      self.client(self.server()).generate("hello", sampling={"temperature": 0})

  def test_several_addresses(self):
    self.assertEqual(_channel.target_of("dns:///aft:8500"), "dns:///aft:8500")
    self.assertEqual(_channel.target_of(["aft:8500"]), "aft:8500")
    self.assertEqual(_channel.target_of(["10.0.0.1:8500", "10.0.0.2:1"]), "ipv4:10.0.0.1:8500,10.0.0.2:1")
    self.assertEqual(_channel.target_of(["[::1]:8500", "[::2]:1"]), "ipv6:[::1]:8500,[::2]:1")
    for addresses in (["aft:8500", "10.0.0.2:1"], ["10.0.0.1:1", "[::1]:1"]):
      with self.assertRaises(ValueError):
        _channel.target_of(addresses)


if __name__ == "__main__":
  unittest.main()
