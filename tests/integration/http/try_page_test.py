#!/usr/bin/env python3
"""The page at `/` of the HTTP API in headless Chromium: try_page_test.py AFT_SERVER MODEL CLASSIFIER [PNG]

The exit code is 77 if Chromium is missing. With PNG it only writes the picture docs/try.png to that file.
"""

import base64
import hashlib
import json
import math
import sys
import unittest
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "bench/serving"))
import aft_server  # noqa: E402
import chromium  # noqa: E402
from server import write_encoder  # noqa: E402

PROMPT = "It is a truth universally acknowledged, that"
EDIT = ".answer .actions button:nth-child(2)"


class TryPageTest(unittest.TestCase):

  def start(self, config="", **size):
    """Opens the page of a new server."""
    self.server = aft_server.Server(aft_server.new_folder(self), PROGRAM, MODEL, config=(
        f'http_address: "127.0.0.1:0"\n{aft_server.SLOW_READERS}\n{config}\n'
        f'models {{ name: "languages" path: "{CLASSIFIER}" intra_op_threads: 1 }}'))
    self.addCleanup(lambda: self.server.stop(hard=True))
    page = chromium.Page(self)
    self.open(page, **size)
    return page

  def open(self, page, **size):
    page.open(f"http://{self.server.http_address}/", **size)
    page.until("byId('go').textContent === 'Generate'")

  def ready(self, size={}, **settings):
    """Opens the page of a new server, waits for its models and fills in the form."""
    page = self.start(**size)
    page.until("models.length === 2")
    for name, value in ({"prompt": PROMPT, "temperature": "0", "max_tokens": "40"} | settings).items():
      page.fill(f"#{name}", value)
    self.addCleanup(lambda: self.assertEqual(page.console, []))  # no policy violation or exception
    return page

  def finish(self, page):
    """Waits until all answers are complete. Returns their texts."""
    page.until("running === null && answers.length > 0")
    self.assertEqual(page.text("#error"), "")
    return page.run("answers.map(answer => answer.text.textContent)")

  def ask(self, page):
    page.point("#go", click=True)
    return self.finish(page)

  def choose(self, page, model):
    page.run(f"byId('model').value = '{model}'; byId('model').dispatchEvent(new Event('change'))")

  def post(self, path, body):
    request = urllib.request.Request(f"http://{self.server.http_address}/v1/{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=aft_server.PATIENCE) as answer:
      return json.load(answer)

  def api(self, prompt, **fields):
    """The API's answer to the same request."""
    return self.post("completions",
                     {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 40} | fields)["choices"]

  def test_tokens_are_counted(self):
    page = self.ready()
    self.assertEqual(self.ask(page), [self.api(PROMPT)[0]["text"]])
    self.assertRegex(page.text("#status"), r"^40 tokens in [\d.]+ s · \d+ tokens/s · .* · 44 tokens read")
    self.assertEqual(page.run("[answers[0].note.textContent, answers[0].text.ariaBusy]"), ["reached its length", "false"])

  def test_several_answers_and_a_seed(self):
    page = self.ready(temperature="1", n="3", seed="7")
    texts = self.ask(page)
    self.assertEqual(texts, [choice["text"] for choice in self.api(PROMPT, temperature=1, n=3, seed=7)])
    self.assertEqual(len(set(texts)), 3)

  def test_a_wrong_setting_stops_only_requests_with_settings(self):
    page = self.ready(temperature="0.75", max_tokens="5")
    self.ask(page)
    for seed, fits in ((2**53 - 1, True), (2**53 + 1, False)):  # The second is no number of JavaScript.
      page.fill("#seed", str(seed))
      self.assertIs(page.run("byId('form').checkValidity()"), fits)
    self.choose(page, "languages")
    page.point("#go", click=True)
    page.until("document.querySelectorAll('.bar').length === 20")
    self.choose(page, "m")
    page.fill("#seed", "")
    page.fill("#max_tokens", "100000")
    page.point("#go", click=True)
    page.until("answers[0].pieces.length > 5")  # The first answer has 5.
    page.fill("#n", "99")
    page.point("#go", click=True)
    self.finish(page)
    self.assertEqual(page.run("answers[0].note.textContent"), "stopped")

  def test_a_stop_string_ends_the_text(self):
    page = self.ready(stop=" the")
    [want] = self.api(PROMPT, stop=[" the"])
    self.assertEqual((self.ask(page), want["finish_reason"]), ([want["text"]], "stop"))

  def test_probabilities_of_the_token_that_is_pointed_at_and_another_choice(self):
    page = self.ready()
    [text] = self.ask(page)
    page.point(".text span:nth-child(6)")
    shown = page.run("[...answers[0].detail.querySelectorAll('.bar')].map(bar => bar.lastChild.textContent)")
    top = self.api(PROMPT, logprobs=5)[0]["logprobs"]["top_logprobs"][5]
    want = sorted(top.items(), key=lambda one: -one[1])
    for percent, (_, logprob) in zip(shown, want, strict=True):
      self.assertAlmostEqual(float(percent.split()[0]), 100 * math.exp(logprob), delta=0.051)
    page.point(".detail li:nth-child(2) button", click=True)
    other = text[:5] + want[1][0]
    self.assertEqual(self.finish(page), [other + self.api(PROMPT + other)[0]["text"]])

  def test_a_running_answer_is_stopped_and_continues_where_it_was(self):
    page = self.ready(max_tokens="100000")
    page.press("Enter", control=True)
    page.until("answers[0]?.pieces.length > 20")
    page.press("Escape")
    [begun] = self.finish(page)
    self.assertEqual(page.run("answers[0].note.textContent"), "stopped")
    aft_server.wait_until(lambda: self.server.metric(r'aft_requests_total.*code="CANCELLED".*') == 1, "cancelled")
    page.fill("#max_tokens", "30")
    page.point(".answer .actions button", click=True)  # Continue
    self.assertEqual(self.finish(page), [self.api(PROMPT, max_tokens=len(begun) + 30)[0]["text"]])

  def test_an_answer_is_edited_and_generated_again(self):
    page = self.ready()
    self.ask(page)
    page.point(EDIT, click=True)
    page.fill(".answer textarea", " Mr. Darcy")
    page.press("Enter", control=True)
    self.assertEqual(self.finish(page), [" Mr. Darcy" + self.api(PROMPT + " Mr. Darcy")[0]["text"]])
    self.assertEqual(page.run("document.querySelectorAll('.answer textarea').length"), 0)

  def test_a_refused_request_changes_no_answer_and_loses_no_edit(self):
    page = self.ready()
    [text] = self.ask(page)
    page.run("""fetch = async () => new Response('{"error": {"message": "x"}}', { status: 429 })""")
    page.point(".text span:nth-child(6)")
    page.point(".detail li:nth-child(2) button", click=True)
    page.until("running === null && byId('error').textContent === 'x'")
    self.assertEqual(page.run("answers[0].text.textContent"), text)
    page.point(EDIT, click=True)
    page.fill(".answer textarea", " Mr. Darcy")
    page.press("Enter", control=True)
    page.until("running === null && byId('error').textContent === 'x'")
    self.assertEqual([page.run("answers[0].textOf()"), page.run("document.querySelector('.answer textarea').value")],
                     [text, " Mr. Darcy"])

  def test_a_stream_arrives_in_parts_and_breaks(self):
    page = self.ready()
    page.run("fetch = async () => new Response(new ReadableStream({ start(stream) { sender = stream; } }))")

    def send(text):
      return f"sender.enqueue(new TextEncoder().encode({json.dumps(text)}))"

    event = json.dumps({"choices": [{"index": 0, "text": "ab", "token_ids": [5], "logprobs": {
        "tokens": ["ab"], "token_logprobs": [-1], "top_logprobs": [{}]}}]})
    for end, error in (("sender.close()", "The connection broke."),
                       (send('data: {"error": {"message": "x"}}\n\n'), "x")):
      page.run("sender = null")
      page.point("#go", click=True)
      page.until("sender !== null")
      page.run(send(f"data: {event[:20]}"))
      page.run(send(f"{event[20:]}\n\n"))
      page.until("answers[0]?.textOf() === 'ab'")
      page.run(end)
      page.until("running === null")
      self.assertEqual([page.text("#error"), page.run("answers[0].note.textContent")], [error, "broken"])

  def test_a_character_of_several_tokens_is_one_piece(self):
    page = self.ready()
    page.run("""answers = [new Answer({ prompt: "" }, "x")]; answers[0].begin(); take = tokens => answers[0].take({
        text: "", token_ids: tokens.map((_, i) => i), logprobs: {
          tokens, token_logprobs: tokens.map(() => -1), top_logprobs: tokens.map(() => ({})) } })""")
    page.run(r"""take(["a", "bytes:\\xe2", "bytes:\\x80"])""")
    self.assertEqual(page.run("answers[0].textOf()"), "a")
    page.run(r"""take(["bytes:\\x94", "<b>"])""")
    pieces = page.run("answers[0].pieces.map(piece => [piece.text, piece.tokens.length])")
    self.assertEqual(pieces, [["a", 1], ["—", 3], ["<b>", 1]])
    self.assertEqual(page.run("answers[0].text.querySelectorAll('b').length"), 0)

  def test_a_token_without_text_is_a_part_of_the_answer(self):
    page = self.ready()
    page.run("""answers = [new Answer({ model: "m", prompt: "x" }, "x")]; answers[0].begin(); answers[0].take({
        text: "ab", token_ids: [5, 6, 7, 8], finish_reason: "stop", logprobs: {
          tokens: ["a", "", "b", ""], token_logprobs: [-1, -1, -1, -1], top_logprobs: [{}, {}, {}, {}] } });
        sent = null; answers[0].context().then(prompt => { sent = prompt })""")
    page.until("sent !== null")
    self.assertEqual(page.run("[sent, answers[0].textOf()]"), [[ord("x"), 5, 6, 7, 8], "ab"])

  def test_the_most_answers_are_those_of_the_api(self):
    page = self.ready()
    most = page.run("byId('n').max")
    with self.assertRaises(urllib.error.HTTPError) as refused:
      self.api(PROMPT, n=int(most) + 1)
    with refused.exception as answer:
      self.assertIn(f"n: must be in [1, {most}]", answer.read().decode())

  def test_a_classifier_shows_its_labels(self):
    page = self.ready(prompt="Wo ist der Bahnhof?")
    self.choose(page, "languages")
    page.run("chosen().labels.reverse()")  # The list is now as old as after a reload of the model.
    self.assertEqual(page.text("#go"), "Classify")
    page.point("#go", click=True)
    page.until("document.querySelectorAll('.bar').length === 20")
    self.assertRegex(page.text(".bar"), r"^de(99\.\d|100\.0) %$")

  def test_an_encoder_compares_two_texts(self):
    folder = aft_server.new_folder(self)
    self.server = aft_server.Server(folder, PROGRAM, write_encoder(folder / "encoder", 32),
                                    config='http_address: "127.0.0.1:0"')
    self.addCleanup(lambda: self.server.stop(hard=True))
    page = chromium.Page(self)
    page.open(f"http://{self.server.http_address}/")
    page.until("byId('go').textContent === 'Compare'")
    self.assertIn("cannot write or classify", page.run("byId('form').innerText"))
    texts = ["Where is it?", "There."]
    vectors = [one["embedding"] for one in self.post("embeddings", {"model": "m", "input": texts})["data"]]
    norms = [math.hypot(*vector) for vector in vectors]
    lines = [f"Norm {norm:.4f}, 32 numbers: {', '.join(f'{value:.4f}' for value in vector[:8])}, …"
             for vector, norm in zip(vectors, norms)]
    alike = sum(x * y for x, y in zip(*vectors)) / math.prod(norms)
    for count, (field, title) in enumerate((("#prompt", "Vector"), ("#second", f"Cosine similarity {alike:.4f}")), 1):
      page.fill(field, texts[count - 1])
      page.point("#go", click=True)
      page.until(f"byId('answers').querySelectorAll('.vector').length === {count}")
      self.assertEqual(page.text("h2"), title)
      self.assertEqual(page.run("[...document.querySelectorAll('.vector')].map(one => one.textContent)"), lines[:count])
    self.assertEqual(page.console, [])

  def test_without_a_model_the_button_asks_for_the_list_again(self):
    page = self.ready()
    page.run("models = []; byId('model').replaceChildren(); update()")
    page.point("#go", click=True)
    page.until("models.length === 2")
    self.assertEqual(page.run("answers.length"), 0)

  def test_errors_of_the_api_are_shown(self):
    page = self.ready(prompt="")
    page.point("#go", click=True)
    page.until("byId('error').textContent === 'prompt: must not be empty'")
    self.assertTrue(all("status of 400" in line for line in page.console), page.console)
    page.console.clear()

  def test_a_wrong_key_is_reported_and_the_right_one_kept_in_the_tab(self):
    clients = aft_server.new_folder(self) / "clients.textproto"
    clients.write_text(f'clients {{ name: "a" token_sha256: "{hashlib.sha256(b"secret").hexdigest()}" }}')
    page = self.start(f'security {{ clients_file: "{clients}" }}')
    page.until("byId('key-row').hidden === false && byId('error').textContent !== ''")
    page.fill("#key", "wrong")
    page.press("Tab")
    aft_server.wait_until(lambda: page.run("1") and sum("401" in line for line in page.console) == 2, "the key is wrong")
    page.until("byId('error').textContent !== '' && models.length === 0")
    page.fill("#key", "secret")
    page.press("Tab")
    page.until("byId('error').textContent === '' && models.length === 2")
    self.open(page)
    page.until("models.length === 2")
    self.assertEqual(page.run("[localStorage.length, document.cookie]"), [0, ""])

  def test_control_and_enter_start_only(self):
    page = self.ready()
    page.run("byId('max_tokens').focus()")
    page.press("Enter", control=True)
    self.finish(page)
    self.assertEqual(page.run("answers[0].note.textContent"), "reached its length")

  def test_the_keyboard_is_enough(self):
    page = self.ready()
    self.open(page)
    page.until("models.length === 2 && document.activeElement === byId('prompt')")
    page.send("Input.insertText", text=PROMPT)  # into the focused field
    page.press("Enter", control=True)
    [text] = self.finish(page)

    def tab_to(what):
      for _ in range(20):
        if page.run(f"document.activeElement.textContent === {json.dumps(what)}"):
          return
        page.press("Tab")
      self.fail(f"no Tab leads to {what}")

    tab_to(text)
    for key, at in (("ArrowRight", 0), ("ArrowRight", 1), ("End", 199), ("ArrowLeft", 198), ("Home", 0)):
      page.press(key)
      self.assertEqual(page.run("answers[0].pieces.findIndex(piece => piece.span.className === 'current')"), at)
    self.assertRegex(page.text(".detail p"), r"^“.*” [\d.]+ %$")
    tab_to("Continue")
    page.press("Enter")
    page.until("running === null && answers[0].pieces.length === 400")
    tab_to("Edit")
    page.press("Enter")
    self.assertTrue(page.run("document.activeElement.value === answers[0].textOf()"))
    unnamed = ("[...document.querySelectorAll('input, select, textarea, button')]"
               ".filter(one => !one.labels?.length && !one.ariaLabel && !one.textContent.trim()).length")
    self.assertEqual(page.run(unnamed), 0)

  def test_a_narrow_screen_needs_no_sideways_scrolling(self):
    page = self.ready({"width": 320, "height": 640}, prompt="w" * 200, n="2")
    self.ask(page)
    page.point(".text span:nth-child(6)")
    page.point(".answer:nth-child(2) .actions button:nth-child(2)", click=True)  # Edit
    self.assertLessEqual(page.run("document.documentElement.scrollWidth"), 320)

  def screenshot(self):
    page = self.ready({"width": 960, "height": 860}, n="2", seed="7", temperature="0.6", max_tokens="160")
    page.point("#tint", click=True)
    self.ask(page)
    page.point(".text span:nth-child(60)")
    PNG[0].write_bytes(base64.b64decode(page.send("Page.captureScreenshot")["data"]))


if __name__ == "__main__":
  if chromium.CHROMIUM is None:
    print("skipped: needs Debian's chromium-headless-shell; ./dev test --full installs it")
    sys.exit(77)
  PROGRAM, MODEL, CLASSIFIER, *PNG = (Path(argument).resolve() for argument in sys.argv[1:])
  unittest.main(argv=[sys.argv[0], *(["TryPageTest.screenshot"] if PNG else [])])
