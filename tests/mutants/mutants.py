"""Makes small random changes (mutants) in production code and shows which of them the tests find.

It writes one mutant at a time into a scratch worktree of HEAD (build/mutants, kept for the next run), and builds and
runs there the tests that are responsible for its folder. A mutant that survives shows a gap in the tests, or is
equivalent to the original code. Read it, and write the missing test or leave it.
"""

import argparse
import difflib
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREE = ROOT / "build/mutants"
BUILD = TREE / "build/default"

# For each folder, the test programs that are responsible for it, the fastest first.
TESTS = {
    "base": ["base_test", "admission_test", "engine_test", "integration_test"],
    "server/admission": ["admission_test", "integration_test"],
    "server/scheduling": ["scheduling_test", "engine_test"],
    "server/engine": ["engine_output_test", "engine_test", "integration_test"],
    "server/observability": ["observability_test", "engine_test", "integration_test"],
    "server/config": ["config_test", "admission_test", "integration_test"],
    "server/registry": ["registry_test", "repository_test", "oip_test", "integration_test"],
    "server/http": ["http_test", "openai_test"],
    "server/states": ["state_store_test", "redis_test", "state_access_test", "integration_test"],
    "server/call": ["call_test", "call_contract_test", "unary_test", "integration_test"],
    "server/transport": ["transport_test", "call_contract_test", "unary_test", "integration_test"],
    "server/api/aft": ["api_test", "call_contract_test", "unary_test", "integration_test"],
    "server/api/oip": ["api_test", "call_contract_test", "oip_test", "oip_mixers_test"],
    "server/api/openai": ["openai_test", "call_contract_test"],
    "server/app": ["integration_test", "process_test"],
    "client/lib": ["client_test"],
    "client/aftload": ["aftload_test"],
    "model/sampling": ["model_unit_test", "runner_property_test"],
    "model/state": ["model_unit_test", "runner_property_test"],
    "model/checkpoint": ["model_unit_test", "checkpoint_unit_test", "convert_test"],
    "model/runtime": ["model_unit_test", "runner_property_test"],
    "model/tokenizer": ["tokenizer_unit_test"],
    "model/config": ["model_unit_test", "checkpoint_unit_test", "train_test", "oip_mixers_test"],
    "model/load": ["model_unit_test", "checkpoint_unit_test", "convert_test"],
    "model/convert": ["convert_test"],
    "model/train": ["train_network_test", "train_test", "zoo_test"],
    "model/train/objectives": ["train_test"],
    "model/train/forms": ["train_form_test", "train_network_test", "train_test"],
}
# These programs run once in each of these environments.
VARIANTS = {"engine_test": [{}, {"AFT_STEPS_IN_FLIGHT": "2"}]}
# These tests make a sparse file that is larger than a mutant may write.
SKIPPED = {"convert_test": "*BeyondTheMemoryAreRefusedBeforeTheyAreRead"}

TEXT = re.compile(
    r"""R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'|//[^\n]*|/\*(?:.|\n)*?\*/"""
)
# Calls that only log, assert, annotate or reserve memory are not changed.
WORDS = re.compile(r"\b(?:log::\w+|AFT_CHECK\w*|static_assert|ABSL_\w+|reserve)\s*\(")
LINE = re.compile(r"^\s*(?:#|using\b|template\b|namespace\b|friend\b).*$", re.M)

SWAPS = [
    (" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "),
    (" != ", " == "), (" && ", " || "), (" || ", " && "), (" + ", " - "), (" - ", " + "),
    (" * ", " / "), (" / ", " * "), (" += ", " -= "), (" -= ", " += "), ("++", "--"),
    ("--", "++"), ("std::min", "std::max"), ("std::max", "std::min"), ("(!", "("),
]
NUMBER = re.compile(r"(?<![\w.'])(?<!e-)\d[\d']*(?=[uUlL]*(?![\w.']))")
BOOL = re.compile(r"\b(true|false)\b")
CONDITION = re.compile(r"\bif \((?!constexpr)(.+)\)(?= \{$| \w.*;$)", re.M)
STATEMENT = re.compile(
    r"(?<=[;{}\n])\n(?P<indent> +)(?P<text>(?:if \(.*\) )?(?:\+\+|--)?"
    r"(?!(?:return|using|case|default|goto|throw|else|public|private|friend)\b)"
    r"[\w.\->:*\[\]()]+(?: [+\-*/|&]?= .*| = .*|\(.*\)(?:\..*)?)?;)$", re.M)
# The errors of a build that a mutant can cause. A full disk or a killed compiler leads to others.
COMPILE_ERROR = re.compile(r":\d+:\d+: error:|undefined (?:symbol|reference)")


def blank(code, start, end):
  return code[:start] + re.sub(r"[^\n]", " ", code[start:end]) + code[end:]


def blanked(source):
  """Returns the code at the same offsets, without comments, strings, assertions and logging."""
  code = source
  for pattern in (TEXT, LINE):
    for match in pattern.finditer(code):
      code = blank(code, *match.span())
  for match in WORDS.finditer(code):
    depth, end = 1, match.end()
    while depth and end < len(code):
      depth += {"(": 1, ")": -1}.get(code[end], 0)
      end += 1
    code = blank(code, match.start(), end)
  return code


def mutations(path):
  """Yields (start, end, replacement, description) of every mutation of a file."""
  source = (TREE / path).read_text()
  code = blanked(source)
  for old, new in SWAPS:
    for match in re.finditer(re.escape(old), code):
      yield match.start(), match.end(), new, f"{old.strip()} -> {new.strip()}"
  for match in NUMBER.finditer(code):
    value = int(match.group().replace("'", ""))
    for other in {value + 1, max(value - 1, 0)} - {value}:
      yield *match.span(), str(other), f"{value} -> {other}"
  for match in BOOL.finditer(code):
    other = "false" if match.group() == "true" else "true"
    yield *match.span(), other, f"{match.group()} -> {other}"
  for match in CONDITION.finditer(code):
    text = source[match.start(1):match.end(1)]
    if ";" not in text and text.count("(") == text.count(")"):
      yield *match.span(1), f"!({text})", "condition negated"
  deepest = 4 if path.endswith(".h") else 2  # a header's members are declarations
  for match in STATEMENT.finditer(code):
    if len(match["indent"]) >= deepest and match["text"].count("(") == match["text"].count(")"):
      yield *match.span("text"), ";", "statement deleted"


def confine():
  """Limits memory and file sizes, because a mutant may allocate or write without end."""
  resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
  resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))


def run(command, limit, env=None):
  """Returns (exit code, output). The code is None if the command exceeded `limit` seconds."""
  with tempfile.TemporaryFile() as output:
    process = subprocess.Popen(command, cwd=TREE, env={**os.environ, **(env or {})}, stdout=output,
                               stderr=output, start_new_session=True, preexec_fn=confine)
    try:
      code = process.wait(limit)
    except subprocess.TimeoutExpired:
      code = None
    finally:
      try:
        os.killpg(process.pid, signal.SIGKILL)  # includes the processes that it has started
      except ProcessLookupError:
        pass
      process.wait()
    output.seek(0)
    return code, output.read().decode(errors="replace")


def build(target, env):
  jobs = os.environ.get("AFT_JOBS", str(os.cpu_count()))
  return run(["cmake", "--build", BUILD, "--target", target, "-j", jobs], 3600, env)


def test(target, limit):
  """Runs a test program in all its variants until one fails. Returns (exit code, output) as `run` does."""
  for variant in VARIANTS.get(target, [{}]):
    code, output = run([BUILD / "bin" / target, "--gtest_brief=1", "--gtest_fail_fast",
                        f"--gtest_filter=-{SKIPPED.get(target, '')}"], limit, variant)
    if code != 0:
      break
  return code, output


def git(folder, *command, check=True):
  """Returns what git prints. Without the ceiling git would act on the clone itself if TREE were no worktree."""
  return subprocess.run(["git", "-C", folder, *command], check=check, stdout=subprocess.PIPE, text=True,
                        stderr=None if check else subprocess.DEVNULL,
                        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(TREE.parent)}).stdout


def checkout():
  """Checks HEAD out in the worktree and returns its commit."""
  # The clone may have been copied or moved, or an interrupted ./dev clean may have removed the worktree's .git.
  repository = ["rev-parse", "--path-format=absolute", "--git-common-dir"]
  if git(TREE, *repository, check=False) != git(ROOT, *repository):
    shutil.rmtree(TREE, ignore_errors=True)
    git(ROOT, "worktree", "prune")
    git(ROOT, "worktree", "add", "--quiet", "--force", "--detach", TREE)
  head = git(ROOT, "rev-parse", "HEAD").strip()
  git(TREE, "checkout", "--quiet", "--force", "--detach", head)
  return head[:10]


def baseline(targets):
  """Builds and runs these test programs, which must pass. Returns the seconds that each takes."""
  subprocess.run(["./dev", "build", *targets], cwd=TREE, check=True)
  seconds = {}
  for target in targets:
    begin = time.monotonic()
    code, output = test(target, 1800)
    if code != 0:
      sys.exit(f"mutants: {target} fails before anything is mutated:\n{output[-2000:]}")
    seconds[target] = time.monotonic() - begin
  return seconds


def verdict(path, seconds, env):
  """Returns 'did not compile', 'survived', or the test program that found the mutant."""
  for target in TESTS[os.path.dirname(path)]:
    code, output = build(target, env)
    if code != 0:
      if not COMPILE_ERROR.search(output):
        sys.exit(f"mutants: the build of {target} failed without an error in the code:\n{output[-2000:]}")
      return "did not compile"
    code, _ = test(target, 60 + 4 * seconds[target])
    if code is None:
      return f"{target}, by its time limit"
    if code != 0:
      return target
  return "survived"


def main():
  parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__)
  parser.add_argument("count", nargs="?", type=int, default=20, help="the number of mutants that compile (20)")
  parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
  parser.add_argument("--only", nargs="+", default=[""], help="only files whose paths start with one of these")
  arguments = parser.parse_args()

  head = checkout()
  files = [path for path in git(TREE, "ls-files", "*.cc", "*.h").split()
           if os.path.dirname(path) in TESTS and path.startswith(tuple(arguments.only))]
  print(f"mutants: seed {arguments.seed}, {len(files)} files of {head}", flush=True)
  # Builds read the compiler cache but store no mutants there. COMPILE_ERROR matches English messages.
  env = {"CCACHE_BASEDIR": str(TREE), "CCACHE_READONLY": "1", "LC_ALL": "C"}

  sites = [(path, *mutation) for path in files for mutation in mutations(path)]
  random.Random(arguments.seed).shuffle(sites)
  drawn, stillborn, survived = 0, 0, 0
  seconds = {}  # the run times of test programs that have passed without a mutant
  for path, start, end, replacement, what in sites:
    if drawn == arguments.count:
      break
    if new := [target for target in TESTS[os.path.dirname(path)] if target not in seconds]:
      seconds.update(baseline(new))
    file = TREE / path
    source = file.read_text()
    mutant = source[:start] + replacement + source[end:]
    begin = time.monotonic()
    file.write_text(mutant)
    try:
      found = verdict(path, seconds, env)
    finally:
      file.write_text(source)
    if found == "did not compile":
      stillborn += 1
      continue
    drawn += 1
    line = source.count("\n", 0, start) + 1
    print(f"{drawn:4} {path}:{line}: {what}: {found} ({time.monotonic() - begin:.0f} s)", flush=True)
    if found == "survived":
      survived += 1
      sys.stdout.writelines(difflib.unified_diff(
          source.splitlines(True), mutant.splitlines(True), f"a/{path}", f"b/{path}", n=2))
  share = 100 * (drawn - survived) / max(drawn, 1)
  print(f"mutants: {drawn - survived} of {drawn} found ({share:.0f} %), {survived} survived, "
        f"{stillborn} did not compile; seed {arguments.seed}, {len(sites)} sites of {head}")


if __name__ == "__main__":
  main()
