#!/usr/bin/env python3
"""Tests ordinary clients, unmodified, with a server that has the models "fake" and "encoder": `openai`, sync and async,
the `llm` command and curl. Their answers are compared with gRPC's answers, which client_test.cc passes in a file.

  client.py HTTP_ADDRESS ANSWERS.json
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import openai

ADDRESS = sys.argv.pop(1)
ANSWERS = json.loads(Path(sys.argv.pop(1)).read_text())
URL = f"http://{ADDRESS}/v1"
ASK = {"model": "fake", "prompt": "hello", "max_tokens": 6, "seed": 7}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 6, "seed": 7}


class OpenAiTest(unittest.TestCase):

  def setUp(self):
    self.client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
    self.addCleanup(self.client.close)

  def test_completions(self):
    answer = self.client.completions.create(**ASK, n=2, logprobs=1)
    self.assertEqual([choice.text for choice in answer.choices], ANSWERS["hello"])
    self.assertEqual(answer.usage.total_tokens, 5 + 2 * 6)
    self.assertEqual(len(answer.choices[0].logprobs.tokens), 6)
    events = list(self.client.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    self.assertEqual("".join(event.choices[0].text for event in events if event.choices), ANSWERS["hello"][0])
    self.assertEqual(events[-1].usage.completion_tokens, 6)

  def test_conversations(self):
    answer = self.client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=1)
    self.assertEqual(answer.choices[0].message.content, ANSWERS["hello\n\n"][0])
    self.assertEqual(len(answer.choices[0].logprobs.content), 6)
    events = self.client.chat.completions.create(**CHAT, stream=True)
    self.assertEqual("".join(event.choices[0].delta.content or "" for event in events), ANSWERS["hello\n\n"][0])

  def test_responses(self):
    ask = {"model": "fake", "max_output_tokens": 6}
    first = self.client.responses.create(input="hello", **ask)
    self.assertEqual(first.output_text, ANSWERS["hello\n\n"][0])
    second = self.client.responses.create(input="hello", previous_response_id=first.id, **ask)
    self.assertEqual(second.usage.input_tokens, len("\n\nhello\n\n"))
    events = list(self.client.responses.create(input="hello", previous_response_id=first.id, stream=True, **ask))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1].response
    self.assertEqual((text, last.output_text), (second.output_text, second.output_text))
    self.assertEqual(self.client.responses.retrieve(last.id).output_text, text)
    self.client.responses.delete(last.id)
    with self.assertRaises(openai.NotFoundError):
      self.client.responses.retrieve(last.id)

  def test_an_echo_has_log_probabilities(self):
    ask = ASK | {"max_tokens": 0, "echo": True, "logprobs": 2}
    choice = self.client.completions.create(**ask).choices[0]
    scores = choice.logprobs
    self.assertEqual((choice.text, choice.finish_reason), ("hello", "length"))
    self.assertEqual((scores.tokens, scores.text_offset), (list("hello"), [0, 1, 2, 3, 4]))
    self.assertEqual((scores.token_logprobs[0], scores.top_logprobs[0]), (None, None))
    self.assertTrue(all(score <= max(top.values()) for score, top in
                        zip(scores.token_logprobs[1:], scores.top_logprobs[1:])))
    # As lm-eval asks, with lists of ids.
    batch = self.client.completions.create(**(ask | {"prompt": [list(b"hello"), list(b"help")], "max_tokens": 1}))
    self.assertEqual(batch.choices[0].logprobs.token_logprobs[2:-1], scores.token_logprobs[2:])
    self.assertEqual(len(batch.choices[1].logprobs.tokens), 4 + 1)
    events = list(self.client.completions.create(**ask, stream=True))
    self.assertEqual(events[0].choices[0].logprobs, scores)

  def test_several_prompts(self):
    answer = self.client.completions.create(**(ASK | {"prompt": ["hello", "hello\n\n"]}))
    self.assertEqual([choice.text for choice in answer.choices], [ANSWERS["hello"][0], ANSWERS["hello\n\n"][0]])

  def test_models_and_embeddings(self):
    self.assertEqual({model.id for model in self.client.models.list()}, {"fake", "encoder"})
    self.assertEqual(self.client.models.retrieve("fake").id, "fake")
    # By default the client requests base64.
    data = self.client.embeddings.create(model="encoder", input=["a", "hello"]).data
    plain = self.client.embeddings.create(model="encoder", input="hello", encoding_format="float").data
    self.assertEqual(data[1].embedding, plain[0].embedding)

  def test_errors(self):
    with self.assertRaises(openai.BadRequestError) as raised:
      self.client.completions.create(model="fake", prompt="x", temperature=-1)
    self.assertEqual((raised.exception.param, raised.exception.code), ("temperature", "invalid_value"))
    with self.assertRaises(openai.NotFoundError):
      self.client.chat.completions.create(**(CHAT | {"model": "nothing"}))
    with self.assertRaises(openai.BadRequestError) as raised:
      self.client.chat.completions.create(**CHAT, tools=[{"type": "function", "function": {"name": "f"}}])
    self.assertEqual(raised.exception.param, "tools")

  def test_leaving_a_stream(self):
    with self.client.completions.create(**(ASK | {"max_tokens": 1_000_000}), stream=True) as stream:
      next(iter(stream))
    self.assertEqual(self.client.completions.create(**ASK).choices[0].text, ANSWERS["hello"][0])

  def test_async(self):
    async def ask():
      async with openai.AsyncOpenAI(base_url=URL, api_key="none") as client:
        answers = await asyncio.gather(*[client.completions.create(**ASK) for _ in range(8)])
        text = ""
        async for event in await client.completions.create(**ASK, stream=True):
          text += event.choices[0].text
        return {answer.choices[0].text for answer in answers} | {text}
    self.assertEqual(asyncio.run(ask()), {ANSWERS["hello"][0]})


class CommandsTest(unittest.TestCase):

  def test_llm(self):
    with tempfile.TemporaryDirectory() as folder:
      Path(folder, "extra-openai-models.yaml").write_text(
          f"- model_id: aft\n  model_name: fake\n  api_base: {URL}\n  completion: true\n"
          f"- model_id: aft-chat\n  model_name: fake\n  api_base: {URL}\n")
      environment = os.environ | {"LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
      for model, prompt in (("aft", "hello"), ("aft-chat", "hello\n\n")):
        done = subprocess.run([sys.executable, "-m", "llm", "-m", model, "hello", "-o", "max_tokens", "6", "-o", "seed",
                               "7"], env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(ANSWERS[prompt][0], done.stdout)

  @unittest.skipUnless(shutil.which("curl"), "no curl")
  def test_curl(self):
    done = subprocess.run(["curl", "-sS", "-N", f"{URL}/completions", "-H", "Content-Type: application/json", "-d",
                           json.dumps(ASK | {"stream": True})], capture_output=True, text=True, check=True)
    events = [line[6:] for line in done.stdout.splitlines() if line]
    self.assertEqual(events.pop(), "[DONE]")
    self.assertEqual("".join(json.loads(event)["choices"][0]["text"] for event in events), ANSWERS["hello"][0])


if __name__ == "__main__":
  unittest.main()
