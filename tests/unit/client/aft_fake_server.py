"""A server for the tests of the Python client. It runs in their process.

Tests import this module first: if Python has no gRPC, it ends them with the status of a skipped test.
"""

import concurrent.futures
import os
import socket
import sys
import threading

os.environ["GRPC_VERBOSITY"] = "NONE"  # these servers have no health service, and gRPC logs that each time

try:
  import grpc
  from aft.v1 import inference_pb2, inference_pb2_grpc, states_pb2, states_pb2_grpc, tokens_pb2
except ModuleNotFoundError as missing:
  if missing.name not in ("grpc", "google", "google.protobuf"):
    raise
  print(f"no Python with gRPC: {missing}")
  sys.exit(77)

Code = grpc.StatusCode


def response(**event):
  return inference_pb2.GenerateResponse(**event)


def started(**more):
  return response(started={"model": "m", "seed": 7, "prompt_tokens": 5, **more})


class ClosedPort:
  """A port on which nothing listens, and which no other program gets during the test."""

  def __init__(self, test):
    bound = socket.socket()
    test.addCleanup(bound.close)
    bound.bind(("127.0.0.1", 0))
    self.address = "127.0.0.1:%d" % bound.getsockname()[1]


class OtherServices(grpc.GenericRpcHandler):
  """Keeps the calls of all other services, and answers each with `answer`, at first an empty message. The health of the server, which a
  client may watch, is that it serves as long as `serves` says."""

  def __init__(self):
    self.calls, self.answer, self.serves, self._over = [], b"", None, threading.Event()

  def service(self, handler_call_details):
    def keep(request, context):
      self.calls.append((handler_call_details.method, request))
      return self.answer

    def watch(request, context):
      context.add_callback(self._over.set)
      yield b"\x08" + bytes([1 if self.serves else 2])  # HealthCheckResponse.status
      self._over.wait()

    if handler_call_details.method != "/grpc.health.v1.Health/Watch":
      return grpc.unary_unary_rpc_method_handler(keep)
    return None if self.serves is None else grpc.unary_stream_rpc_method_handler(watch)


class Keeper(grpc.ServerInterceptor):
  """Keeps the metadata of each call, and the seconds until its deadline."""

  def __init__(self):
    self.metadata, self.seconds = [], []

  def intercept_service(self, continuation, handler_call_details):
    handler = continuation(handler_call_details)
    if handler is None:
      return None
    kind = "_".join("stream" if streams else "unary" for streams in (handler.request_streaming,
                                                                     handler.response_streaming))
    answer = getattr(handler, kind)

    def keep(request, context):
      self.metadata.append(dict(context.invocation_metadata()))
      self.seconds.append(context.time_remaining())
      return answer(request, context)

    return handler._replace(**{kind: keep})


class Server(inference_pb2_grpc.InferenceServiceServicer, states_pb2_grpc.StateServiceServicer):
  """Keeps the requests, and answers with `answer`, `answer_score` and `answer_encode`."""

  def __init__(self, test, credentials=None):
    self.requests = []
    self.answer, self.answer_score, self.answer_encode = self.say, self.score, self.encode
    kept = Keeper()
    self.metadata, self.seconds = kept.metadata, kept.seconds
    self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), interceptors=(kept,),
                               options=[("grpc.so_reuseport", 0)])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, self._server)
    states_pb2_grpc.add_StateServiceServicer_to_server(self, self._server)
    self.others = OtherServices()
    self._server.add_generic_rpc_handlers((self.others,))
    self.address = "127.0.0.1:%d" % (self._server.add_secure_port("127.0.0.1:0", credentials) if credentials else
                                     self._server.add_insecure_port("127.0.0.1:0"))
    self._server.start()
    test.addCleanup(self.stop)

  def stop(self):
    self._server.stop(0).wait()

  # gRPC gives the names of these methods.
  def Generate(self, request, context):  # pylint: disable=invalid-name
    copy = inference_pb2.GenerateRequest()
    copy.CopyFrom(request)
    self.requests.append(copy)
    yield from self.answer(request, context)

  def say(self, request, context):
    yield started()
    yield response(delta={"token_ids": [97], "text": "a"})
    yield response(finished={"reason": 3})

  def Complete(self, request, context):  # pylint: disable=invalid-name
    self.requests.append(request)
    return inference_pb2.CompleteResponse(started={"seed": 7}, answers=[
        {"token_ids": [97, 98, 99], "text": "abc", "finished": {"reason": 3, "limit": "stop.max_tokens=3"}},
        {"token_ids": [100], "text": "d", "logprobs": [{"logprob": -1}],
         "finished": {"reason": 1, "state": {"id": "s"}}}])

  def Tokenize(self, request, context):  # pylint: disable=invalid-name
    self.requests.append(request)
    return tokens_pb2.TokenizeResponse(token_ids=[97, 98, 300], byte_ends=[1, 2, 4])

  def Detokenize(self, request, context):  # pylint: disable=invalid-name
    self.requests.append(request)
    return tokens_pb2.DetokenizeResponse(text="a\ufffd", raw=b"a\xff", byte_ends=[1, 2])

  def Score(self, request, context):  # pylint: disable=invalid-name
    copy = inference_pb2.ScoreRequest()
    copy.CopyFrom(request)
    self.requests.append(copy)
    yield from self.answer_score(request, context)

  def score(self, request, context):
    yield inference_pb2.ScoreResponse(started={"tokens": 3})
    for first in (1, 2):
      yield inference_pb2.ScoreResponse(chunk={"first_index": first, "token_ids": [97 + first], "logprobs": [
          {"logprob": -first, "top": [{"token_id": 5, "logprob": -0.5}]}]})
    yield inference_pb2.ScoreResponse(finished={
        "scored_tokens": 2, "logprob": -3, "perplexity": 4.5, "scored_bytes": 2, "state": {"id": "s"}})

  def Encode(self, request, context):  # pylint: disable=invalid-name
    self.requests.append(request)
    yield from self.answer_encode(request, context)

  def encode(self, request, context):
    yield inference_pb2.EncodeResponse(started={"tokens": 2, "width": 2})
    yield inference_pb2.EncodeResponse(vectors={"values": [1, 0.5]})
    yield inference_pb2.EncodeResponse(vectors={"first_index": 1, "values": [-2.5, 3]})
    yield inference_pb2.EncodeResponse(finished={})

  def Get(self, request, context):  # pylint: disable=invalid-name
    if request.id != "s":
      context.abort(Code.NOT_FOUND, "no state of this id")
    return states_pb2.StateServiceGetResponse(state={"id": "s", "tokens": 3, "pending": True})

  def List(self, request, context):  # pylint: disable=invalid-name
    following = {"": ["a", "b"], "b": ["c"], "c": []}[request.after_id]
    return states_pb2.StateServiceListResponse(states=[{"id": one} for one in following])

  def Delete(self, request, context):  # pylint: disable=invalid-name
    self.requests.append(request)
    return states_pb2.StateServiceDeleteResponse()

  def Export(self, request, context):  # pylint: disable=invalid-name
    for chunk in (b"sea", b"led"):
      yield states_pb2.StateServiceExportResponse(chunk=chunk)

  def Import(self, requests, context):  # pylint: disable=invalid-name
    self.requests += list(requests)
    return states_pb2.StateServiceImportResponse(state={"id": "new"})
