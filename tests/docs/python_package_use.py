"""Uses the installed aft_client against a server, every service with both clients: python_package_use.py ADDRESS

The server has one model, "m", which generates.
"""

import asyncio
import importlib.metadata
import inspect
import sys

try:
  import tritonclient.grpc  # It defines messages of the same names.
except ModuleNotFoundError:
  tritonclient = None

import grpc

import aft_client
from aft_client import AftError, AsyncClient, Client, Finished, Health, ModelState, Pooling, Sampling, Task, Tensor

GREEDY = Sampling(temperature=0)
PROMPT = "It is a truth"


async def result(value):
  """The value of a call of either client."""
  return await value if inspect.isawaitable(value) else value


async def events_of(stream):
  return [event async for event in stream] if hasattr(stream, "__aiter__") else list(stream)


async def use(client):
  assert await result(client.health()) == Health.SERVING
  model, = await result(client.list_models())
  assert (model.name, model.state, model.task) == ("m", ModelState.READY, Task.GENERATE), model
  assert await result(client.get_model("m")) == model

  generation = client.generate(PROMPT, sampling=GREEDY, max_tokens=24, n=2, cache_salt="user 1", store=True)
  events = await events_of(generation)
  assert sum(isinstance(event, Finished) for event in events) == 2
  text = generation.outputs[0].text
  assert text.startswith(" to be sure. I was"), text
  assert (await result(client.complete(PROMPT, sampling=GREEDY, max_tokens=24))).text == text

  scores = await result(client.score_all([PROMPT, "It is a fruit"]))
  assert scores[0].logprob > scores[1].logprob
  assert (await result(client.score(PROMPT, cache_salt="user 1"))).logprob == scores[0].logprob
  vectors = await result(client.encode_all([PROMPT, "It is a fruit"], pooling=Pooling.MEAN))
  assert [len(one.vectors[0]) for one in vectors] == [model.vector_width] * 2
  assert bytes((await result(client.tokenize(PROMPT))).ids) == PROMPT.encode()  # This model's tokens are bytes.

  state = generation.finished.state
  assert (await result(client.get_state(state.id))).tokens == state.tokens
  copy = await result(client.import_state("m", await result(client.export_state(state.id))))
  following = [await result(client.complete(" and", sampling=GREEDY, max_tokens=4, previous=one.id))
               for one in (state, copy)]
  assert following[0].text == following[1].text
  await result(client.delete_state(state.id))
  await expect(grpc.StatusCode.NOT_FOUND, client.get_state, state.id)

  await use_open_inference(client, text)
  assert [one.name for one in await result(client.list_repository())] == ["m"]
  await expect(grpc.StatusCode.PERMISSION_DENIED, client.load_model, "m")
  await expect(grpc.StatusCode.PERMISSION_DENIED, client.unload_model, "m")
  # Without an identity a client has no states of its own.
  await expect(grpc.StatusCode.FAILED_PRECONDITION, lambda: events_of(client.list_states()))


async def use_open_inference(client, text):
  def inputs(max_tokens):
    return [Tensor("text_input", "BYTES", [1], [PROMPT]), Tensor("max_tokens", "INT32", [1], [max_tokens]),
            Tensor("exclude_input_in_output", "BOOL", [1], [True])]

  before, = await result(client.statistics())
  answer = await result(client.infer("m", inputs(24), parameters={"temperature": 0.0}, id="mine"))
  assert (answer.id, answer.outputs[0].values) == ("mine", (text.encode(),)), answer
  answers = await events_of(client.stream_infer("m", inputs(24), parameters={"temperature": 0.0}, id="mine"))
  assert {answer.id for answer in answers} == {"mine"} and len(answers) > 1, answers
  assert b"".join(answer.outputs[0].values[0] for answer in answers) == text.encode(), answers
  after, = await result(client.statistics("m", model_version=before.version))
  assert after.inference_count - before.inference_count == after.success.count - before.success.count == 2, after
  assert (after.success.ns > before.success.ns and after.last_inference >= before.last_inference and
          after.batch_stats == ()), after

  about = await result(client.metadata("m"))
  assert (about.name, about.versions) == ("m", (before.version,)), about
  assert ("text_input", "BYTES", (1,)) in [(one.name, one.datatype, one.shape) for one in about.inputs], about
  assert "text_output" in [one.name for one in about.outputs], about
  for call in (client.metadata, client.statistics, lambda name: events_of(client.stream_infer(name, inputs(1)))):
    await expect(grpc.StatusCode.NOT_FOUND, call, "n")

  endless = client.stream_infer("m", inputs(1_000_000), parameters={"ignore_eos": True})
  if hasattr(endless, "__anext__"):
    await anext(endless)
    await endless.aclose()
  else:
    next(endless)
    endless.close()
  while (await result(client.get_model("m"))).load.requests_running > 0:  # The server hears of it.
    pass


async def expect(code, call, *arguments):
  try:
    await result(call(*arguments))
  except AftError as error:
    assert error.code == code, error
  else:
    raise AssertionError(f"{call} went well")


async def use_both(address):
  with Client(address) as client:
    await use(client)
  async with AsyncClient(address) as client:
    await use(client)
    streams = [client.generate(PROMPT, sampling=GREEDY, max_tokens=24) for _ in range(100)]
    assert len(set(await asyncio.gather(*(stream.text() for stream in streams)))) == 1

    async def read_forever():
      async for _ in client.generate(PROMPT, max_tokens=1_000_000, ignore_eos=True):
        begun.set()

    begun = asyncio.Event()
    reader = asyncio.create_task(read_forever())
    await begun.wait()
    reader.cancel()
    assert isinstance((await asyncio.gather(reader, return_exceptions=True))[0], asyncio.CancelledError)
    while (await client.get_model("m")).load.requests_running > 0:  # until the server sees the cancellation
      pass


asyncio.run(use_both(sys.argv[1]))
versions = [f"{name} {importlib.metadata.version(name)}" for name in ("grpcio", "protobuf")]
print(*versions, "with tritonclient" if tritonclient else "", aft_client.__file__)
