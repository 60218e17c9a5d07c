"""A server of the Python client's tests, in their process."""

import concurrent.futures
import threading

import grpc
from aft.v1 import inference_pb2, inference_pb2_grpc, states_pb2, states_pb2_grpc, tokens_pb2

Code = grpc.StatusCode
TEXT = "abcdefgh"
FINGERPRINT = 0xF1
NOT_NOW = (("grpc-retry-pushback-ms", "0"),)
OWN_WORD = (("aft-usage-bin", b""),)


class Break:
  """How a call ends early: after so many tokens, or refused."""

  def __init__(self, after=0, code=Code.UNAVAILABLE, details="the server went away", trailers=(), hand_over=(),
               refused=False, anonymous=False, exact=True, fingerprint=FINGERPRINT):
    self.after, self.code, self.details, self.hand_over = after, code, details, hand_over
    self.refused, self.exact, self.fingerprint = refused, exact, fingerprint
    self.trailers = tuple(trailers) + ((("x-request-id", "fake-1"),) if refused and not anonymous else ())


def response(**event):
  return inference_pb2.GenerateResponse(**event)


def started(fingerprint=FINGERPRINT, **more):
  return response(started={"model": "m", "seed": 7, "prompt_tokens": 5, "fingerprint": fingerprint, **more})


def delta(first, text, ids=None, sequence=0):
  return response(sequence=sequence, delta={
      "first_index": first, "token_ids": map(ord, text) if ids is None else ids, "text": text})


def finished(tokens=len(TEXT), sequence=0, prompt_tokens=5):
  return response(sequence=sequence, finished={"reason": 3, "limit": f"stop.max_tokens={tokens}",
                            "usage": {"prompt_tokens": prompt_tokens, "generated_tokens": tokens}})


class Server(inference_pb2_grpc.InferenceServiceServicer, states_pb2_grpc.StateServiceServicer):
  """Says TEXT, and follows a plan of breaks, which the calls use up in turn; or `answer(request, context)`."""

  def __init__(self, test, breaks=()):
    self.breaks, self.requests, self.metadata, self.deadlines = list(breaks), [], [], []
    self.answer, self.answer_score, self.answer_encode = self.say, self.score, self.encode
    self.scores = [-1, -2]
    self.left = threading.Semaphore(0)  # calls of stall() that have ended
    self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, self._server)
    states_pb2_grpc.add_StateServiceServicer_to_server(self, self._server)
    self.address = "127.0.0.1:%d" % self._server.add_insecure_port("127.0.0.1:0")
    self._server.start()
    test.addCleanup(self.stop)

  def stop(self):
    self._server.stop(0).wait()

  # The methods' names are gRPC's.
  def Generate(self, request, context):  # pylint: disable=invalid-name
    copy = inference_pb2.GenerateRequest()
    copy.CopyFrom(request)
    self.requests.append(copy)
    self.metadata.append(dict(context.invocation_metadata()))
    yield from self.answer(request, context)

  def say(self, request, context):
    call = len(self.requests) - 1
    planned = self.breaks[call] if call < len(self.breaks) else None
    first = len(request.resume.token_ids)
    if planned is not None and planned.refused:
      context.set_trailing_metadata(planned.trailers)
      context.abort(planned.code, planned.details)
    context.send_initial_metadata((("x-request-id", self.metadata[-1].get("x-request-id", "fake-1")),))
    yield started(planned.fingerprint if planned else FINGERPRINT, numerics=f"numerics {call}",
                  resume_id=f"resume {call}",
                  exact=request.HasField("resume") and (planned is None or planned.exact))
    for i in range(first, min(len(TEXT), first + planned.after) if planned else len(TEXT)):
      yield delta(i, TEXT[i])
    if planned is None:
      yield finished()
      return
    for chunk in planned.hand_over:
      yield response(hand_over={"chunk": chunk})
    context.set_trailing_metadata(planned.trailers)
    context.abort(planned.code, planned.details)

  def stall(self, request, context):
    """Says three tokens, and no more."""
    gone = threading.Event()
    context.add_callback(gone.set)
    context.add_callback(self.left.release)
    yield started()
    for i in range(3):
      yield delta(i, TEXT[i])
    gone.wait()

  def Complete(self, request, context):  # pylint: disable=invalid-name
    self.requests.append(request)
    self.metadata.append(dict(context.invocation_metadata()))
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
    call = len(self.requests) - 1
    planned = self.breaks[call] if call < len(self.breaks) else None
    behind = 0 if request.HasField("previous") and request.previous.state_id == "pending" else 1
    yield inference_pb2.ScoreResponse(started={
        "tokens": len(self.scores) + behind, "fingerprint": planned.fingerprint if planned else FINGERPRINT,
        "numerics": f"numerics {call}", "exact": request.HasField("resume") and (planned is None or planned.exact)})
    first, logprob = request.resume.scores, request.resume.logprob
    for i in range(first, min(len(self.scores), first + planned.after) if planned else len(self.scores)):
      chunk = inference_pb2.ScoreResponse(chunk={"first_index": i + behind, "token_ids": [98 + i], "logprobs": [
          {"logprob": self.scores[i], "top": [{"token_id": 5, "logprob": -0.5}]}]})
      logprob += chunk.chunk.logprobs[0].logprob
      yield chunk
    if planned:
      context.set_trailing_metadata(planned.trailers)
      context.abort(planned.code, planned.details)
    yield inference_pb2.ScoreResponse(finished={
        "scored_tokens": len(self.scores), "logprob": logprob, "perplexity": 4.5, "scored_bytes": 2,
        "state": {"id": "s"}})

  def Encode(self, request, context):  # pylint: disable=invalid-name
    self.requests.append(request)
    yield from self.answer_encode(request, context)

  def encode(self, request, context):
    yield inference_pb2.EncodeResponse(started={"tokens": 2, "width": 2})
    yield inference_pb2.EncodeResponse(vectors={"values": [1, 0.5]})
    yield inference_pb2.EncodeResponse(vectors={"first_index": 2 if self.breaks else 1, "values": [-2.5, 3]})
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
