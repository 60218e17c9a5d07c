#!/usr/bin/env python3
"""Does with the Python client what the scenarios of the contract ask for.

Reads lines "ADDRESS CLIENT SCENARIO", and answers each with a line that has what the application saw. The scenario and
the answer are messages of scenario.proto, as base64. A line "cut" before the answer asks the caller to break the
connection. The line "close" closes the client, and the answer is "closed".
"""

import asyncio
import base64
import sys
import threading
import traceback

import aft_client
import scenario_pb2
from aft_client import AftError, Delta, Finished, PromptScores, Started


class BlockingClient:
  """AsyncClient with the methods of Client: each runs the event loop until it has its result."""

  def __init__(self, *args, **options):
    self._loop = asyncio.new_event_loop()

    async def make():
      return aft_client.AsyncClient(*args, **options)

    self._client = self._loop.run_until_complete(make())

  def __getattr__(self, name):
    return lambda *args, **options: self._loop.run_until_complete(getattr(self._client, name)(*args, **options))

  def generate(self, *args, **options):
    return BlockingGeneration(self._loop, self._client.generate(*args, **options))


class BlockingGeneration:
  """AsyncGeneration with the methods of Generation."""

  def __init__(self, loop, generation):
    self._loop, self._generation = loop, generation

  def __getattr__(self, name):
    return getattr(self._generation, name)

  def __iter__(self):
    return self

  def __next__(self):
    try:
      return self._loop.run_until_complete(self._generation.__anext__())
    except StopAsyncIteration:
      raise StopIteration from None

  def close(self):
    self._loop.call_soon_threadsafe(self._generation.close)


class Application:
  """An application that records what it sees."""

  def __init__(self, client, scenario, address):
    self.scenario, self.seen, self.tokens = scenario, scenario_pb2.Observed(), 0
    options = {name: getattr(scenario.options, name) for name in ("max_attempts", "max_resumes")
               if scenario.options.HasField(name)}
    if scenario.options.HasField("deadline_ms"):
      options["timeout"] = scenario.options.deadline_ms / 1000 or None
    addresses = address[len("ipv4:"):].split(",") if address.startswith("ipv4:") else address
    self.client = client(addresses, **options)
    self.closer = None

  def run(self):
    try:
      getattr(self, self.scenario.WhichOneof("request"))()
      self.seen.code = scenario_pb2.OK
    except AftError as error:
      self.seen.code, self.seen.message = error.code.value[0], error.message
      self.seen.received_tokens, self.seen.request_id = error.received_tokens, error.request_id
      if error.retry_after_ms is not None:
        self.seen.retry_after_ms = error.retry_after_ms
    if self.closer is not None:
      self.closer.join()
    return self.seen

  def generate(self):
    request = self.scenario.generate
    generation = self.client.generate(
        request.text, max_tokens=request.stop.max_tokens, n=max(request.n, 1), store=request.HasField("store"),
        prompt_logprobs=request.prompt_logprobs,
        sampling=aft_client.Sampling(**{field.name: value for field, value in request.sampling.ListFields()}),
        **self.common(request))
    then, done = self.scenario.then, False
    for event in generation:
      self.write(event)
      if then == scenario_pb2.NOTHING or done or self.tokens < self.scenario.at_token:
        continue
      done = True
      if then == scenario_pb2.CUT:
        print("cut", flush=True)
      elif then == scenario_pb2.CANCEL:
        self.closer = threading.Thread(target=generation.close)
        self.closer.start()
      else:
        generation.close()
    self.seen.cancelled = generation.finished is None
    assert not list(generation)
    for sequence, output in enumerate(generation.outputs):
      mine = [event.delta for event in self.seen.events if event.sequence == sequence]
      assert output.text == "".join(delta.text for delta in mine), output
      assert output.token_ids == [one for delta in mine for one in delta.token_ids], output
    self.went_well(generation)
    self.seen.request_id = generation.request_id

  def score(self):
    request = self.scenario.score
    options = {"top_logprobs": request.output.top_logprobs, **self.common(request)}
    if request.texts:
      scores = self.client.score_all([one.text for one in request.texts], **options)
    else:
      scores = [self.client.score(request.text, context_tokens=request.context_tokens, **options)]
    for one in scores:
      self.seen.answers.add(token_ids=one.token_ids, values=[score.logprob for score in one.logprobs],
                            logprob=one.logprob)
    self.went_well(scores[0])
    self.seen.request_id = "fake-1"  # scores have no request id

  def encode(self):
    request = self.scenario.encode
    options = {"model": request.model, "pooling": aft_client.Pooling(request.pooling), "normalize": request.normalize}
    if request.texts:
      vectors = self.client.encode_all([one.text for one in request.texts], **options)
    else:
      vectors = [self.client.encode(request.text, **options)]
    for one in vectors:
      self.seen.answers.add(values=[value for vector in one.vectors for value in vector])
    self.seen.exact = True
    self.seen.request_id = "fake-1"

  def common(self, request):
    return {"model": request.model, "previous": request.previous.state_id or None,
            "request_id": self.scenario.options.request_id, "on_resumed": self.write_resumed}

  def write(self, event):
    if isinstance(event, Started):
      self.seen.events.add(started={"model": event.model, "model_version": event.model_version, "seed": event.seed,
                                    "prompt_tokens": event.prompt_tokens})
    elif isinstance(event, PromptScores):
      assert len(event.logprobs) == len(event.token_ids)
      self.seen.events.add(prompt_scores={"first_index": event.first_index, "token_ids": event.token_ids})
    elif isinstance(event, Delta):
      self.tokens += len(event.token_ids)
      self.seen.events.add(sequence=event.sequence, delta={
          "first_index": event.first_index, "token_ids": event.token_ids, "text": event.text})
    elif isinstance(event, Finished):
      self.seen.events.add(sequence=event.sequence, finished={"usage": vars(event.usage)})

  def write_resumed(self, resumed):
    assert resumed.until_started >= 0
    self.seen.resumed.add(cause=resumed.cause.code.value[0], cause_has=resumed.cause.message, exact=resumed.exact,
                          tries=resumed.tries, until_sent_ms=int(resumed.until_sent * 1000), tokens=resumed.tokens,
                          sequence=resumed.sequence)

  def went_well(self, result):
    self.seen.resumes, self.seen.exact = result.resumes, result.exact


def main():
  application, clients = None, {"PYTHON": aft_client.Client, "PYTHON_ASYNC": BlockingClient}
  for line in sys.stdin:
    if line == "close\n":
      application.client.close()
      print("closed", flush=True)
      continue
    address, client, scenario = line.split()
    application = Application(clients[client], scenario_pb2.Scenario.FromString(base64.b64decode(scenario)), address)
    try:
      seen = application.run()
    except Exception:  # pylint: disable=broad-except  # the client may raise only AftError
      seen = scenario_pb2.Observed(code=scenario_pb2.VARIED, message=traceback.format_exc())
    print(base64.b64encode(seen.SerializeToString()).decode(), flush=True)


if __name__ == "__main__":
  main()
