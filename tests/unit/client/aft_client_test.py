#!/usr/bin/env python3
"""The Python client against servers in this process, which break streams in every way."""

import dataclasses
import os
import sys
import threading
import unittest

os.environ["GRPC_VERBOSITY"] = "NONE"  # these servers tell no health, and gRPC says so each time
os.environ["no_grpc_proxy"] = "127.0.0.1"

try:
  import aft_client
  from aft.v1 import generation_options_pb2, inference_pb2, tokens_pb2
  from aft_client import AftError, Delta, Finished, Sampling, Started, State
  from aft_client import _channel, _resumable
  from google.protobuf.descriptor import FieldDescriptor
  from aft_fake_server import (FINGERPRINT, NOT_NOW, OWN_WORD, TEXT, Break, Code, Server, delta, finished, response,
                               started)
except ModuleNotFoundError as missing:
  if missing.name not in ("grpc", "google", "google.protobuf"):
    raise
  print(f"no Python with gRPC: {missing}")
  sys.exit(77)


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class ClientTest(unittest.TestCase):

  def server(self, *breaks):
    return Server(self, breaks)

  def client(self, *servers, **options):
    options.setdefault("max_attempts", 1)  # gRPC's own are beside the point
    client = aft_client.Client([server.address for server in servers], **options)
    self.addCleanup(client.close)
    return client

  def generate(self, *breaks, client=(), **options):
    """(server, generation, events, what went on, error) of one that breaks so."""
    server, resumed, events = self.server(*breaks), [], []
    generation = self.client(server, **dict(client)).generate("hello", on_resumed=resumed.append, **options)
    try:
      events.extend(generation)
    except AftError as error:
      return server, generation, events, resumed, error
    return server, generation, events, resumed, None

  def assert_whole(self, events, error=None):
    self.assertIsNone(error)
    self.assertEqual([type(event) for event in events], [Started] + [Delta] * len(TEXT) + [Finished])
    for i, event in enumerate(events[1:-1]):
      self.assertEqual(event, Delta(i, (ord(TEXT[i]),), TEXT[i]))

  def text(self, events):
    return "".join(event.text for event in events if isinstance(event, Delta))


class ResumeTest(ClientTest):

  def test_the_application_sees_one_stream_wherever_it_breaks(self):
    for code in (Code.UNAVAILABLE, Code.CANCELLED, Code.INTERNAL, Code.UNKNOWN):
      for at in range(len(TEXT) + 1):
        with self.subTest(code=code, at=at):
          _, generation, events, resumed, error = self.generate(Break(at, code))
          self.assert_whole(events, error)
          self.assertEqual((generation.resumes, generation.exact), (1, True))
          self.assertEqual([(one.cause.code, one.tokens, one.exact) for one in resumed], [(code, at, True)])
          self.assertEqual(generation.token_ids, [ord(one) for one in TEXT])

  def test_each_server_gets_the_request_and_what_has_come(self):
    sampling = Sampling(temperature=0.5)
    server, generation, events, _, error = self.generate(
        Break(3), Break(2), model="m", max_tokens=8, sampling=sampling, store=True, previous="p", stop=["x"])
    self.assert_whole(events, error)
    for i, had in enumerate(("", "abc", "abcde")):
      request = server.requests[i]
      self.assertTrue(request.resumable)
      self.assertEqual(request.HasField("resume"), i > 0)
      if i > 0:
        self.assertEqual(request.sampling.seed, 7)
        self.assertEqual(request.resume, inference_pb2.Resume(
            token_ids=map(ord, had), fingerprint=FINGERPRINT, numerics=f"numerics {i - 1}",
            resume_id=f"resume {i - 1}"))
      request.ClearField("resume")
      request.sampling.ClearField("seed")
      self.assertEqual(request, inference_pb2.GenerateRequest(
          model="m", text="hello", sampling={"temperature": 0.5}, stop={"max_tokens": 8, "strings": ["x"]},
          store={}, previous={"state_id": "p"}, resumable=True))
    self.assertEqual([one.get("x-request-id") for one in server.metadata], [None, "fake-1", "fake-1"])
    self.assertEqual(generation.request_id, "fake-1")

  def test_other_errors_end_it(self):
    breaks = [Break(2, code) for code in (
        Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.NOT_FOUND, Code.PERMISSION_DENIED,
        Code.UNAUTHENTICATED, Code.DEADLINE_EXCEEDED, Code.DATA_LOSS, Code.UNIMPLEMENTED, Code.ABORTED,
        Code.OUT_OF_RANGE, Code.ALREADY_EXISTS, Code.RESOURCE_EXHAUSTED)]
    breaks += [Break(2, Code.INTERNAL, trailers=OWN_WORD), Break(2, Code.UNKNOWN, trailers=OWN_WORD),
               Break(2, trailers=(("grpc-retry-pushback-ms", "-1"),))]
    for planned in breaks:
      with self.subTest(code=planned.code):
        server, _, events, _, error = self.generate(planned)
        self.assertEqual((error.code, error.received_tokens, error.request_id), (planned.code, 2, "fake-1"))
        self.assertEqual(self.text(events), "ab")
        self.assertEqual(len(server.requests), 1)

  def test_a_refusal_is_tried_again_as_the_server_says(self):
    for code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE, Code.CANCELLED):
      refusal = Break(code=code, trailers=NOT_NOW, refused=True)
      server, _, events, resumed, error = self.generate(Break(2), refusal, refusal)
      self.assert_whole(events, error)
      self.assertEqual(len(server.requests), 4)
      self.assertEqual([(one.cause.message, one.tries) for one in resumed], [("the server went away", 3)])
      self.assertGreaterEqual(resumed[0].until_sent, 0.05 + 0.1)  # the least that back_off(1) and back_off(2) are
      self.assertGreaterEqual(resumed[0].until_started, 0)
    for code in (Code.INTERNAL, Code.UNKNOWN):
      _, _, events, _, error = self.generate(Break(2), Break(code=code, refused=True, anonymous=True))
      self.assert_whole(events, error)

  def test_a_refusal_that_is_final_ends_it_and_tells_both_reasons(self):
    for refusal in (Break(code=Code.FAILED_PRECONDITION, details="of another model", refused=True),
                    Break(code=Code.NOT_FOUND, details="no such state", refused=True),
                    Break(code=Code.INTERNAL, details="a defect", refused=True),
                    Break(code=Code.RESOURCE_EXHAUSTED, details="never", refused=True,
                          trailers=(("grpc-retry-pushback-ms", "-1"),))):
      server, _, events, _, error = self.generate(Break(2), refusal)
      self.assertEqual(error.code, refusal.code)
      self.assertEqual(error.message, f"{refusal.details}; the stream had to go on because the server went away")
      self.assertEqual(self.text(events), "ab")
      self.assertEqual(len(server.requests), 2)

  def test_what_is_handed_over_goes_along_unseen(self):
    server, _, events, _, error = self.generate(
        Break(3, hand_over=(b"stat", b"e of ", b"three")), Break(1), Break(1, hand_over=(b"newer",)))
    self.assert_whole(events, error)
    self.assertEqual([one.resume.state for one in server.requests], [b"", b"state of three", b"state of three", b"newer"])

  def test_a_state_that_no_server_would_take_stays_behind(self):
    chunk = b"s" * (256 << 10)
    for chunks, kept in ((15, 15), (16, 0), (40, 0)):
      server, _, events, _, error = self.generate(Break(3, hand_over=[chunk] * chunks))
      self.assert_whole(events, error)
      self.assertEqual(len(server.requests[1].resume.state), kept * len(chunk))
    server, _, events, _, error = self.generate(
        Break(3, hand_over=(b"state",)), Break(code=Code.RESOURCE_EXHAUSTED, trailers=NOT_NOW, refused=True))
    self.assert_whole(events, error)
    self.assertEqual([one.resume.state for one in server.requests], [b"", b"state", b""])

  def test_the_limit_counts_tries_without_a_token(self):
    _, generation, events, _, error = self.generate(*[Break(1)] * 6, client={"max_resumes": 2})
    self.assert_whole(events, error)
    self.assertEqual(generation.resumes, 6)
    server, _, events, _, error = self.generate(Break(1), Break(0), Break(0), Break(1), client={"max_resumes": 2})
    self.assertEqual((error.code, self.text(events), len(server.requests)), (Code.UNAVAILABLE, "a", 3))

  def test_a_request_that_brings_servers_down_is_not_carried_to_all_of_them(self):
    server, _, events, _, error = self.generate(Break(2), Break(1), *[Break(0)] * 4)
    self.assertEqual((error.code, self.text(events), len(server.requests)), (Code.UNAVAILABLE, "abc", 5))
    _, _, events, _, error = self.generate(Break(2), Break(0), Break(0), Break(1), Break(0), Break(0))
    self.assert_whole(events, error)

  def test_who_wants_none_gets_none(self):
    server, _, events, resumed, error = self.generate(Break(3), client={"max_resumes": 0})
    self.assertEqual((error.code, self.text(events), resumed), (Code.UNAVAILABLE, "abc", []))
    self.assertFalse(server.requests[0].resumable)

  def test_a_server_that_cannot_resume_is_not_asked_to(self):
    server, _, _, _, error = self.generate(Break(3, fingerprint=0))
    self.assertEqual((error.code, len(server.requests)), (Code.UNAVAILABLE, 1))

  def test_no_other_model_goes_on(self):
    _, _, events, _, error = self.generate(Break(3), Break(3, fingerprint=0xF2))
    self.assertEqual((error.code, self.text(events)), (Code.DATA_LOSS, "abc"))
    self.assertIn("another model", error.message)

  def test_who_computes_otherwise_is_told(self):
    _, generation, events, resumed, error = self.generate(Break(2), Break(2), Break(2, exact=False), Break(1))
    self.assert_whole(events, error)
    self.assertEqual([one.exact for one in resumed], [True, False, False, False])
    self.assertFalse(generation.exact)

  def test_text_behind_the_last_token_comes_once(self):
    for delivered in (False, True):
      server = self.server()

      def answer(request, context, server=server, delivered=delivered):
        yield started()
        if not request.resume.token_ids:
          yield delta(0, "ab")
        if delivered or len(server.requests) > 1:
          yield delta(2, "rest", ids=())
        if len(server.requests) < 3:
          context.abort(Code.UNAVAILABLE, "gone")
        yield finished(2)

      server.answer = answer
      events = list(self.client(server).generate("hello"))
      self.assertEqual(self.text(events), "abrest")
      self.assertEqual(len(events), 4)

  def test_what_breaks_the_protocol_is_an_error(self):
    cases = {
        "token 1 came twice": [started(), delta(0, "ab"), delta(1, "b")],
        "tokens 2 to 4 are lost": [started(), delta(0, "ab"), delta(5, "f")],
        "Started came twice": [started(), started()],
        "delta came outside Started and Finished": [delta(0, "a")],
        "finished came outside Started and Finished": [started(), finished(), finished()],
        "it ended without Finished": [started(), delta(0, "ab")],
    }
    for message, responses in cases.items():
      with self.subTest(message):
        server = self.server()
        server.answer = lambda request, context, responses=responses: iter(responses)
        generation = self.client(server).generate("hello")
        try:
          list(generation)
          self.assertIn("Finished", message)  # what follows it is never read
          self.assertIsNotNone(generation.finished)
        except AftError as error:
          self.assertEqual((error.code, error.message), (Code.DATA_LOSS, f"the answer is broken: {message}"))
        self.assertEqual(len(server.requests), 1)

  def test_a_finished_stream_is_whole_whatever_becomes_of_its_trailers(self):
    server = self.server()

    def answer(request, context):
      yield from (started(), delta(0, "ab"), finished(2))
      context.abort(Code.UNAVAILABLE, "gone")

    server.answer = answer
    self.assertEqual(self.client(server).generate("hello").text(), "ab")
    self.assertEqual(len(server.requests), 1)

  def test_it_goes_on_at_another_server(self):
    silent, other = self.server(), self.server()
    silent.answer = silent.stall
    client = self.client(silent, other)
    while not silent.requests:  # calls take turns
      resumed, text = [], ""
      for event in client.generate("hello", on_resumed=resumed.append):
        text += event.text if isinstance(event, Delta) else ""
        if silent.requests and text == "abc" and not resumed:
          threading.Thread(target=silent.stop).start()
      self.assertEqual(text, TEXT)
    self.assertEqual(len(resumed), 1)

  def test_the_deadline_is_that_of_the_whole_stream(self):
    server = self.server()

    def answer(request, context):  # breaks for ever, after a token each time
      yield started()
      yield delta(len(request.resume.token_ids), "x")
      context.set_trailing_metadata((("grpc-retry-pushback-ms", "5"),))
      context.abort(Code.UNAVAILABLE, "gone")

    server.answer = answer
    with self.assertRaises(AftError) as caught:
      list(self.client(server).generate("hello", timeout=0.2))
    self.assertIn(caught.exception.code, (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED))

  def test_a_pause_that_the_deadline_cuts_short_is_not_begun(self):
    server, _, _, _, error = self.generate(Break(3, trailers=(("grpc-retry-pushback-ms", "3600000"),)))
    self.assertEqual((error.code, error.retry_after_ms, len(server.requests)), (Code.UNAVAILABLE, 3_600_000, 1))

  def test_closing_ends_the_pause(self):
    for _ in range(5):  # in some of them it comes before the pause
      server = self.server(Break(3, trailers=(("grpc-retry-pushback-ms", "3600000"),)))
      generation = self.client(server, timeout=None).generate("hello")
      text = ""
      for event in generation:
        text += event.text if isinstance(event, Delta) else ""
        if text == "abc":
          threading.Thread(target=generation.close).start()
      self.assertIsNone(generation.finished)
      self.assertEqual(len(server.requests), 1)

  def test_closing_tells_the_server(self):
    server = self.server()
    server.answer = server.stall
    client = self.client(server)
    with client.generate("hello") as generation:
      self.assertIsInstance(next(generation), Started)
    server.left.acquire()
    self.assertEqual(list(generation), [])
    waiting = client.generate("hello")
    for event in waiting:
      if isinstance(event, Delta) and event.text == "c":
        threading.Thread(target=waiting.close).start()  # the next event never comes
    server.left.acquire()
    self.assertEqual(len(server.requests), 2)

  def test_the_back_off_doubles_up_to_a_limit_less_a_part_by_chance(self):
    self.assertEqual([_resumable.back_off(tries, 0) for tries in range(9)], [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5])
    self.assertEqual(_resumable.back_off(10**6, 0), 5)
    self.assertAlmostEqual(_resumable.back_off(2, 0.5), 0.15)


class CallsTest(ClientTest):

  def test_every_described_option_is_a_typed_argument(self):
    options = generation_options_pb2.DESCRIPTOR.GetOptions().Extensions[generation_options_pb2.generation_option]
    kinds = {FieldDescriptor.CPPTYPE_FLOAT: "float", FieldDescriptor.CPPTYPE_BOOL: "bool",
             FieldDescriptor.CPPTYPE_STRING: "str"}
    arguments = {"sampling": {}, "stop": {}, "output": {}}
    for option in options:
      part, name = option.field.split(".")
      field = inference_pb2.GenerateRequest.DESCRIPTOR.fields_by_name[part].message_type.fields_by_name[name]
      kind = kinds.get(field.cpp_type, "int")
      if field.message_type:
        kind = "Mapping[int, float]"
      elif field.label == field.LABEL_REPEATED:
        kind = f"Sequence[{kind}]"
      # What is no field of Sampling, and has a list, is called as elsewhere.
      name = option.oip_name if part == "stop" and field.label == field.LABEL_REPEATED else name
      arguments[part][name] = f"Optional[{kind}]" if part == "sampling" or field.has_presence else kind
    self.assertEqual({field.name: field.type for field in dataclasses.fields(Sampling)}, arguments["sampling"])
    for call in (aft_client.Client.generate, aft_client.Client.complete):
      annotations = call.__annotations__
      for name, kind in {**arguments["stop"], **arguments["output"]}.items():
        self.assertEqual(annotations.get(name), kind, name)

  def test_sends_every_option(self):
    server = self.server()
    examples = {FieldDescriptor.CPPTYPE_FLOAT: 0.5, FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
                FieldDescriptor.CPPTYPE_MESSAGE: {5: -1.5, 6: 100}}
    sampling = Sampling(**{
        field.name: [5, 6] if field.label == field.LABEL_REPEATED and not field.message_type else examples.get(
            field.cpp_type, 3) for field in inference_pb2.SamplingOptions.DESCRIPTOR.fields})
    client = self.client(server, token="secret")
    client.generate(b"\xff", sampling=sampling, stop_token_ids=[10], include_stop_string=True, ignore_eos=True,
                    min_tokens=3, echo=True, top_logprobs=2, priority=aft_client.Priority.BATCH, previous=b"sealed", store=60_000,
                    request_id="mine", traceparent=TRACEPARENT).text()
    self.assertEqual(server.requests[0], inference_pb2.GenerateRequest(
        raw=b"\xff", sampling=vars(sampling), stop={"token_ids": [10], "include_stop_string": True,
                                                    "ignore_eos": True, "min_tokens": 3},
        output={"top_logprobs": 2, "echo": True}, priority=3, previous={"state": b"sealed"}, store={"ttl_ms": 60_000},
        resumable=True))
    self.assertEqual(server.metadata[0]["authorization"], "Bearer secret")
    self.assertEqual(server.metadata[0]["x-request-id"], "mine")
    self.assertEqual(server.metadata[0]["traceparent"], TRACEPARENT)
    client.generate([1, 2]).text()
    self.assertNotIn("traceparent", server.metadata[1])
    self.assertEqual(server.requests[1], inference_pb2.GenerateRequest(tokens={"ids": [1, 2]}, stop={},
                                                                       resumable=True))

  def test_events_are_values(self):
    server = self.server()
    server.answer = lambda request, context: iter([
        started(), response(delta={"token_ids": [97], "text": "a", "logprobs": [
            {"logprob": -1, "top": [{"token_id": 5, "logprob": -2}]}]}),
        response(finished={"reason": 2, "stop_string": "x", "usage": {"prompt_tokens": 5, "generated_tokens": 1},
                           "state": {"id": "s", "model": "m", "tokens": 6, "bytes": 9, "ttl_ms": 8, "pending": True}})])
    generation = self.client(server).generate("hello")
    self.assertEqual(list(generation), [
        Started("m", "", 7, 5), Delta(0, (97,), "a", (aft_client.TokenLogprobs(-1, ((5, -2),)),)),
        Finished(aft_client.FinishReason.STOP, aft_client.Usage(5, 1), stop_string="x",
                 state=State("s", "m", 6, 9, 8, True))])
    self.assertEqual(generation.started.seed, 7)
    self.assertEqual(generation.finished.state.id, "s")

  def test_the_prompt_is_echoed(self):
    server = self.server()
    server.answer = lambda request, context: iter([
        started(prompt={"token_ids": [5, 6], "text": "It"}), response(finished={"reason": 1})])
    begun = next(iter(self.client(server).generate("It", echo=True)))
    self.assertEqual((begun.prompt_ids, begun.prompt), ((5, 6), "It"))

  def test_completes(self):
    server = self.server()
    done = self.client(server, token="secret").complete("hello", n=2, max_tokens=3, store=True, min_tokens=1,
                                                        request_id="mine", traceparent=TRACEPARENT)
    self.assertEqual(server.requests[0], inference_pb2.GenerateRequest(
        text="hello", n=2, stop={"max_tokens": 3, "min_tokens": 1}, store={}))
    self.assertEqual(server.metadata[0]["x-request-id"], "mine")
    self.assertEqual(server.metadata[0]["traceparent"], TRACEPARENT)
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
    scores = client.score("abc", top_logprobs=1, previous="p", store=True)
    self.assertEqual((scores.token_ids, [one.logprob for one in scores.logprobs]), ((98, 99), [-1, -2]))
    self.assertEqual((scores.logprobs[0].top, scores.perplexity, scores.state.id), (((5, -0.5),), 4.5, "s"))
    self.assertEqual(server.requests[0], inference_pb2.ScoreRequest(
        text="abc", output={"top_logprobs": 1}, previous={"state_id": "p"}, store={}, resumable=True))
    encoded = client.encode("ab", pooling=aft_client.Pooling.MEAN, normalize=True)
    self.assertEqual((encoded.vectors, encoded.tokens), (((1, 0.5), (-2.5, 3)), 2))
    self.assertEqual(server.requests[1], inference_pb2.EncodeRequest(text="ab", pooling=1, normalize=True))

  def test_several_texts(self):
    server = self.server()
    server.answer_score = lambda request, context: iter(map(lambda one: inference_pb2.ScoreResponse(**one), [
        {"started": {"tokens": 5, "text_tokens": [3, 2]}},
        {"index": 1, "chunk": {"first_index": 1, "token_ids": [99], "logprobs": [{"logprob": -2}]}},
        {"index": 1, "finished": {"scored_tokens": 1, "logprob": -2, "state": {"id": "s"}}},
        {"chunk": {"first_index": 1, "token_ids": [98, 97], "logprobs": [{"logprob": -1}, {"logprob": -3}]}},
        {"finished": {"scored_tokens": 2, "logprob": -4}}]))
    client = self.client(server)
    scores = client.score_all(["abc", b"\xff", [1, 2]][:2], previous="p", store=True, model_version="3")
    self.assertEqual([(one.token_ids, one.logprob) for one in scores], [((98, 97), -4), ((99,), -2)])
    self.assertEqual(scores[1].state.id, "s")
    self.assertEqual(server.requests[0], inference_pb2.ScoreRequest(
        texts=[{"text": "abc"}, {"raw": b"\xff"}], output={"top_logprobs": 0}, previous={"state_id": "p"}, store={},
        model_version="3", resumable=True))
    server.answer_encode = lambda request, context: iter(map(lambda one: inference_pb2.EncodeResponse(**one), [
        {"started": {"width": 2, "tokens": 3, "text_tokens": [1, 2]}},
        {"index": 1, "vectors": {"values": [1, 2]}},
        {"index": 1, "vectors": {"first_index": 1, "values": [3, 4]}},
        {"index": 1, "finished": {}}, {"vectors": {"values": [5, 6]}}, {"finished": {}}]))
    encoded = client.encode_all([[7], "bc"], normalize=True)
    self.assertEqual([(one.vectors, one.tokens) for one in encoded], [(((5, 6),), 1), (((1, 2), (3, 4)), 2)])
    self.assertEqual(server.requests[1], inference_pb2.EncodeRequest(
        texts=[{"tokens": {"ids": [7]}}, {"text": "bc"}], normalize=True))
    with self.assertRaisesRegex(AftError, "Started is of other texts"):
      client.encode_all(["a", "b", "c"])
    self.assertEqual((client.score_all([]), client.encode_all([])), ([], []))

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

  def test_scores_and_vectors_that_are_lost_are_errors(self):
    server = self.server(Break(fingerprint=0))
    with self.assertRaisesRegex(AftError, "went away"):
      self.client(server).score("abc")
    self.assertEqual(len(server.requests), 1)  # by a server that cannot resume
    with self.assertRaisesRegex(AftError, "vectors are lost"):
      self.client(server).encode("ab")

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

  def test_a_server_that_is_not_there(self):
    server = self.server()
    server.stop()
    with self.assertRaises(AftError) as caught:
      self.client(server).generate("hello").text()
    self.assertEqual(caught.exception.code, Code.UNAVAILABLE)

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
