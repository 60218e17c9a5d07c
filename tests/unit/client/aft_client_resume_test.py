#!/usr/bin/env python3
"""Scorings and generations of several sequences that break, with the Python client."""

import unittest

from aft_client_test import ClientTest  # first: it knows what to do without gRPC

from aft.v1 import inference_pb2
from aft_client import AftError, Delta, Finished, Started
from aft_fake_server import FINGERPRINT, Break, Code, delta, finished, started


class ScoresTest(ClientTest):
  SCORES = [-0.1, -0.7, -1.3, -0.2, -3.1]

  def score(self, *breaks, client=(), **options):
    server, resumed = self.server(*breaks), []
    server.scores = self.SCORES
    return server, self.client(server, **dict(client)).score("hello", on_resumed=resumed.append, **options), resumed

  def test_the_application_sees_one_answer_wherever_it_breaks(self):
    _, whole, _ = self.score()
    self.assertEqual((whole.token_ids, whole.resumes, whole.exact), ((98, 99, 100, 101, 102), 0, True))
    for previous in (None, "pending"):
      for code in (Code.UNAVAILABLE, Code.CANCELLED, Code.INTERNAL, Code.UNKNOWN):
        for at in range(len(self.SCORES) + 1):
          with self.subTest(code=code, at=at, previous=previous):
            server, scores, resumed = self.score(Break(at, code), Break(1), previous=previous)
            self.assertEqual((scores.token_ids, scores.logprobs, scores.logprob),
                             (whole.token_ids, whole.logprobs, whole.logprob))
            self.assertEqual([one.tokens for one in resumed], [at, min(at + 1, len(self.SCORES))])
            self.assertEqual((scores.resumes, scores.exact), (2, True))
            last = server.requests[-1]
            self.assertEqual((last.resume.scores, last.resume.fingerprint, last.resume.numerics),
                             (resumed[-1].tokens, FINGERPRINT, "numerics 1"))
            self.assertEqual((last.text, last.resumable), ("hello", True))

  def test_who_computes_otherwise_is_told(self):
    _, scores, resumed = self.score(Break(2), Break(1, exact=False), Break(1))
    self.assertEqual(([one.exact for one in resumed], scores.exact), ([False] * 3, False))

  def test_the_limits_are_those_of_generations(self):
    for breaks, requests in (([Break(1)] + [Break()] * 5, 4), ([Break(2, Code.INVALID_ARGUMENT)], 1)):
      server = self.server(*breaks)
      server.scores = self.SCORES
      with self.assertRaises(AftError):
        self.client(server).score("hello")
      self.assertEqual(len(server.requests), requests)
    server = self.server(Break(1))
    with self.assertRaises(AftError):
      self.client(server, max_resumes=0).score("hello")
    self.assertFalse(server.requests[0].resumable)

  def test_what_breaks_the_protocol_is_an_error(self):
    server = self.server()
    chunk = {"first_index": 1, "token_ids": [1], "logprobs": [{"logprob": -1}]}
    cases = {
        "scores 1 to 2 are lost": [{"started": {}}, {"chunk": chunk}, {"chunk": dict(chunk, first_index=4)}],
        "score 0 came twice": [{"started": {}}, {"chunk": chunk}, {"chunk": chunk}],
        "2 scores, and 1 have come": [{"started": {}}, {"chunk": chunk}, {"finished": {"scored_tokens": 2}}],
        "chunk came outside Started and Finished": [{"chunk": chunk}],
        "a chunk has not as many log-probabilities as tokens": [{"started": {}}, {"chunk": dict(chunk, logprobs=[])}],
        "it ended without Finished": [{"started": {}}],
    }
    for message, events in cases.items():
      with self.subTest(message):
        server.answer_score = lambda request, context, events=events: iter(
            [inference_pb2.ScoreResponse(**event) for event in events])
        with self.assertRaises(AftError) as caught:
          self.client(server).score("hello")
        self.assertEqual(caught.exception.message, f"the answer is broken: {message}")


class TextsTest(ClientTest):
  """Scorings of several texts, of which those that have not finished are asked for again."""

  TEXTS = ["abcdef", "gh", "i", "jklmn"]

  def answer(self, server, numerics):

    def say(request, context):
      planned = server.breaks[len(server.requests) - 1] if len(server.requests) <= len(server.breaks) else None
      events = [{"started": {"fingerprint": FINGERPRINT, "numerics": numerics[min(len(server.requests), 2) - 1]}}]
      for first in (1, 3, 5):
        for index, text in enumerate(text.text for text in request.texts):
          ids = [ord(one) for one in text[first:first + 2]]
          if ids:
            events.append({"index": index, "chunk": {
                "first_index": first, "token_ids": ids, "logprobs": [{"logprob": -one} for one in ids]}})
          if first < len(text) + 2 and first + 2 >= len(text) and (first == 1 or ids):
            events.append({"index": index, "finished": {"scored_tokens": len(text) - 1, "logprob": -len(text)}})
      for event in events[:planned.after + 1 if planned else None]:
        yield inference_pb2.ScoreResponse(**event)
      if planned:
        context.abort(planned.code, planned.details)

    return say

  def score(self, *breaks, numerics=("n", "n")):
    server, resumed = self.server(*breaks), []
    server.answer_score = self.answer(server, numerics)
    return server, self.client(server).score_all(self.TEXTS, on_resumed=resumed.append), resumed

  def test_the_application_sees_each_score_once_wherever_it_breaks(self):
    for at in range(10):  # six chunks, and four ends
      for again in range(4):
        with self.subTest(at=at, again=again):
          _, scores, resumed = self.score(Break(at), Break(again))
          self.assertEqual([one.token_ids for one in scores],
                           [tuple(map(ord, text[1:])) for text in self.TEXTS])
          self.assertEqual([one.logprob for one in scores], [-6, -2, -1, -5])
          self.assertGreaterEqual(len(resumed), 1)
          self.assertTrue(scores[0].exact)

  def test_only_what_has_not_finished_is_asked_for_again(self):
    server, _, _ = self.score(Break(5))
    self.assertEqual([[text.text for text in request.texts] for request in server.requests],
                     [self.TEXTS, ["abcdef", "jklmn"]])
    self.assertFalse(server.requests[1].HasField("resume"))

  def test_who_computes_otherwise_is_told(self):
    for numerics in (("n", "m"), ("", "")):
      _, scores, resumed = self.score(Break(3), numerics=numerics)
      self.assertEqual((scores[0].exact, resumed[0].exact), (False, False))


class SequencesTest(ClientTest):
  """Generations of several sequences, of which each goes on by itself."""
  TEXTS = ("abcd", "klmn", "uvwx")

  def sing(self, sent, breaks=(), whole=False):
    """A server whose common call breaks when each sequence has sent so many tokens; with more than there are it has
    finished. `breaks`: after how many tokens calls of a sequence break, in turn."""
    server = self.server()
    left = {sequence: list(ends) for sequence, ends in dict(breaks).items()}

    def answer(request, context):
      if request.n > 1:
        yield started(seed=2**64 - 1)  # the second one's is 0
        for i in range(4):
          for sequence, text in enumerate(self.TEXTS):
            if whole or i < sent[sequence]:
              yield delta(i, text[i], sequence=sequence)
        for sequence in range(3):
          if whole or sent[sequence] > 4:
            yield finished(4, sequence, prompt_tokens=0 if sequence else 5)
        if not whole:
          context.abort(Code.UNAVAILABLE, "gone")
        return
      sequence = (request.sampling.seed + 1) % 2**64
      yield started(seed=request.sampling.seed, exact=True)
      first, ends = len(request.resume.token_ids), left.get(sequence)
      end = min(4, first + ends.pop(0)) if ends else None
      for i in range(first, 4 if end is None else end):
        yield delta(i, self.TEXTS[sequence][i])
      if end is not None:
        context.abort(Code.UNAVAILABLE, "gone again")
      yield finished(4)

    server.answer = answer
    return server

  def check(self, server):
    resumed = []
    generation = self.client(server).generate("hello", n=3, on_resumed=resumed.append)
    events = list(generation)
    self.assertIsInstance(events[0], Started)
    self.assertEqual(sum(isinstance(event, Started) for event in events), 1)
    for sequence, text in enumerate(self.TEXTS):
      mine = [event for event in events[1:] if event.sequence == sequence]
      self.assertEqual([(event.first_index, event.text) for event in mine[:-1]], list(enumerate(text)))
      self.assertIsInstance(mine[-1], Finished)
      self.assertEqual(mine[-1].usage.generated_tokens, 4)
      self.assertEqual(generation.outputs[sequence].text, text)
      self.assertEqual(generation.outputs[sequence].token_ids, list(map(ord, text)))
      self.assertEqual(generation.outputs[sequence].finished, mine[-1])
    self.assertEqual(sum(event.usage.prompt_tokens for event in events if isinstance(event, Finished)), 5)
    return generation, resumed

  def test_the_application_sees_one_stream_wherever_it_breaks(self):
    for sent in ((0, 0, 0), (1, 0, 3), (4, 4, 4), (5, 1, 1), (0, 5, 5), (2, 5, 0)):
      with self.subTest(sent=sent):
        server = self.sing(sent)
        generation, resumed = self.check(server)
        unfinished = [sequence for sequence in range(3) if sent[sequence] <= 4]
        self.assertEqual(sorted(one.sequence for one in resumed), unfinished)
        self.assertEqual((generation.resumes, generation.exact), (len(unfinished), True))
        self.assertEqual(sorted((request.sampling.seed + 1) % 2**64 for request in server.requests[1:]), unfinished)
        for request in server.requests[1:]:
          sequence = (request.sampling.seed + 1) % 2**64
          self.assertEqual((request.n, request.resumable, request.text), (0, True, "hello"))
          self.assertEqual(list(request.resume.token_ids), list(map(ord, self.TEXTS[sequence][:sent[sequence]])))
          self.assertEqual(request.resume.fingerprint, FINGERPRINT)

  def test_each_goes_on_as_often_as_it_must(self):
    server = self.sing((1, 0, 5), {0: (1, 1), 1: (2,)})
    generation, resumed = self.check(server)
    self.assertEqual((len(server.requests), generation.resumes), (6, 5))
    self.assertEqual(sorted(one.sequence for one in resumed), [0, 0, 0, 1, 1])

  def test_without_a_break_there_is_one_call(self):
    server = self.sing((), whole=True)
    self.check(server)
    self.assertEqual(len(server.requests), 1)

  def test_where_one_fails_all_end(self):
    server = self.server()

    def answer(request, context):
      if request.n > 1:
        yield started()
        context.abort(Code.UNAVAILABLE, "gone")
      if request.sampling.seed == 8:
        context.abort(Code.INVALID_ARGUMENT, "a reason")
      yield from server.stall(request, context)

    server.answer = answer
    with self.assertRaisesRegex(AftError, "a reason"):
      list(self.client(server).generate("hello", n=3))

  def test_closing_tells_all_servers(self):
    server = self.server()

    def answer(request, context):
      if request.n > 1:
        yield started()
        context.abort(Code.UNAVAILABLE, "gone")
      yield from server.stall(request, context)

    server.answer = answer
    with self.client(server).generate("hello", n=3) as generation:
      deltas = [event for _, event in zip(range(10), generation) if isinstance(event, Delta)]
      self.assertEqual(len(deltas), 9)
    for _ in range(3):
      server.left.acquire()
    self.assertEqual(list(generation), [])

  def test_a_sequence_that_is_not_there_is_an_error(self):
    server = self.server()
    server.answer = lambda request, context: iter([started(), delta(0, "a", sequence=3)])
    with self.assertRaisesRegex(AftError, "there is no sequence 3"):
      list(self.client(server).generate("hello", n=3))
    with self.assertRaises(ValueError):
      self.client(server).generate("hello", n=0)


if __name__ == "__main__":
  unittest.main()
