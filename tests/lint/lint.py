#!/usr/bin/env python3
"""Checks the rules of the code that no compiler checks: which folder may include which, and a few habits.

  lint.py [FILE...]     checks every file of the repository (or these); one line per finding
  lint.py --self-test   proves that each rule fires on a bad sample and stays silent on good ones

Only Python's standard library. Exit code 1 when something was found, 77 if the folder is not a clone.
"""

import functools
import itertools
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 500

# ---- Floors --------------------------------------------------------------------------------------
# Third parties that only some folders may include: name -> (header pattern, folders).
THIRD_PARTIES = {
    "torch": (r"(ATen|torch|c10|caffe2)/", ["model/checkpoint/", "model/mixers/", "model/layers/", "model/network/",
              "model/gpu/", "model/load/", "model/train/", "model/convert/"]),
    "CUDA": (r"(cuda|cublas|cudnn|cooperative_groups|cub/|thrust/)", ["model/kernels/cuda/", "model/gpu/"]),
    "Highway": (r"hwy/", ["model/kernels/"]),
    "RE2": (r"re2/", ["model/tokenizer/"]),
    "utf8proc": (r"utf8proc\.h", ["model/tokenizer/"]),
    "gRPC": (r"grpc(pp)?(/|\+\+)|.*\.grpc\.pb\.h$", ["server/transport/", "server/api/", "server/app/", "client/"]),
    "protobuf": (r"google/protobuf/|.*\.pb\.h$",
                 ["server/states/", "server/call/", "server/transport/", "server/api/", "server/app/", "server/config/", "client/"]),
    "prometheus-cpp": (r"prometheus/", ["server/observability/"]),
    "OpenSSL": (r"openssl/", ["server/admission/", "server/registry/", "server/states/", "server/http/",
                              "client/aftload/"]),
    "Boost": (r"boost/", ["server/http/", "client/aftload/"]),
    "hiredis": (r"hiredis/", ["server/states/"]),
    "nlohmann-json": (r"nlohmann/", ["base/json", "model/config/", "model/checkpoint/", "model/convert/",
                      "model/tokenizer/", "model/train/", "server/api/", "server/app/", "client/"]),
}

# Own folders, lowest first: each may include itself and the folders named, all of which stand above
# it in this list, so nothing includes back up. Longest matching prefix wins. CONTRIBUTING.md names
# them in the same order.
FLOORS = {
    "base/": [],
    "model/api/": ["base/"],
    "model/config/": ["base/", "model/api/"],
    "model/kernels/": ["model/config/"],
    "model/sampling/": ["base/", "model/api/", "model/kernels/"],
    "model/kernels/cuda/": ["model/config/", "model/kernels/", "model/api/", "model/sampling/"],
    "model/tokenizer/": ["base/", "model/api/"],
    "model/state/": ["base/", "model/kernels/"],
    "model/checkpoint/": ["base/", "model/config/", "model/kernels/"],
    "model/mixers/": ["base/", "model/config/", "model/kernels/", "model/state/"],
    "model/layers/": ["base/", "model/config/", "model/kernels/", "model/state/", "model/mixers/"],
    "model/network/": ["base/", "model/config/", "model/kernels/", "model/state/", "model/checkpoint/",
                       "model/mixers/", "model/layers/"],
    "model/runtime/": ["base/", "model/api/", "model/config/", "model/kernels/", "model/sampling/",
                       "model/state/", "model/mixers/", "model/network/"],
    "model/gpu/": ["base/", "model/api/", "model/config/", "model/kernels/", "model/kernels/cuda/",
                   "model/sampling/", "model/state/", "model/mixers/", "model/layers/",
                   "model/network/", "model/runtime/"],
    "model/load/": ["base/", "model/api/", "model/config/", "model/tokenizer/", "model/state/",
                    "model/checkpoint/", "model/network/", "model/runtime/", "model/gpu/"],
    "model/train/forms/": ["base/", "model/config/", "model/kernels/", "model/mixers/"],
    "model/train/": ["base/", "model/api/", "model/config/", "model/tokenizer/", "model/state/",
                     "model/checkpoint/", "model/network/", "model/train/forms/"],
    "model/convert/": ["base/", "model/api/", "model/config/", "model/tokenizer/", "model/state/",
                       "model/checkpoint/", "model/mixers/", "model/network/", "model/runtime/"],
    "server/scheduling/": ["base/", "model/api/"],
    "server/observability/": ["base/", "server/scheduling/"],
    "server/http/": ["base/", "server/observability/"],
    "aft/config/": [],
    "aft/v1/": [],
    "server/config/": ["base/", "model/api/", "model/config/", "aft/config/"],
    "server/admission/": ["base/", "server/observability/", "server/config/"],
    "server/engine/": ["base/", "model/api/", "server/scheduling/", "server/observability/",
                       "server/config/"],
    "server/states/": ["base/", "aft/v1/", "server/scheduling/", "server/observability/",
                       "server/config/", "server/engine/"],
    "server/registry/": ["base/", "model/api/", "server/scheduling/", "server/observability/",
                         "server/config/", "server/engine/"],
    "server/call/": ["base/", "model/api/", "aft/v1/", "server/observability/",
                     "server/scheduling/", "server/config/", "server/admission/", "server/engine/",
                     "server/states/", "server/registry/"],
    "server/transport/": ["base/", "server/observability/", "server/scheduling/", "server/config/",
                          "server/admission/", "server/call/"],
    "server/api/aft/": ["base/", "model/api/", "aft/v1/", "server/observability/",
                        "server/config/", "server/engine/", "server/states/", "server/registry/",
                        "server/call/", "server/transport/"],
    "server/api/oip/": ["base/", "model/api/", "aft/v1/", "server/observability/",
                        "server/config/", "server/engine/", "server/registry/", "server/call/",
                        "server/transport/", "server/api/aft/"],
    "server/api/openai/": ["base/", "model/api/", "aft/v1/", "server/observability/", "server/http/",
                           "server/scheduling/", "server/config/", "server/admission/",
                           "server/engine/", "server/states/", "server/registry/", "server/call/",
                           "server/transport/", "server/api/aft/"],
    "server/app/": ["base/", "model/api/", "aft/v1/", "server/observability/",
                    "server/scheduling/", "server/config/", "server/admission/", "server/states/",
                    "server/registry/", "server/call/", "server/transport/", "server/api/aft/",
                    "server/api/oip/", "server/api/openai/", "server/http/"],
    "client/": ["base/", "aft/v1/"],
}
OWN = re.compile(r"(base|model|server|client|aft)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def floor_of(path):
  return max((f for f in FLOORS if path.startswith(f)), key=len, default=None)


def check_includes(path, text):
  for found in INCLUDE.finditer(text):
    header = found.group(1)
    line = text.count("\n", 0, found.start(1)) + 1
    if header in ("torch/torch.h", "torch/all.h"):
      yield line, f"{header} costs 12 s a file: include ATen/core/Tensor.h and ATen/ops/*.h"
      continue
    if path.startswith("tests/"):
      continue  # Tests may see everything.
    for name, (pattern, folders) in THIRD_PARTIES.items():
      if re.match(pattern, header) and not header.startswith("aft/config/"):
        if not path.startswith(tuple(folders)):
          yield line, f"{name} ({header}) is not for this folder"
    if OWN.match(header):
      floor = floor_of(path)
      if floor is None:
        yield line, "this folder is not among the floors of lint.py"
      elif not header.startswith((floor, *FLOORS[floor])):
        yield line, f"{floor} may not include {header}"


def check_order(floors):
  for i, (floor, below) in enumerate(floors.items()):
    for name in below:
      if name not in list(floors)[:i]:
        yield f"{floor} names {name}, which does not stand above it"


def check_used(files, floors, third_parties):
  """files: path -> text of the sources. A permission that no file uses is a finding."""
  includes = [(path, header) for path, text in files.items() for header in INCLUDE.findall(text)]
  for floor, below in floors.items():
    headers = {header for path, header in includes if floor_of(path) == floor}
    for name in below:
      if not any(header.startswith(name) for header in headers):
        yield f"{floor} may include {name}, but no file does: delete that permission"
  for name, (pattern, folders) in third_parties.items():
    for folder in folders:
      if not any(path.startswith(folder) and re.match(pattern, header) for path, header in includes):
        yield f"{folder} may include {name}, but no file does: delete that permission"


def check_floors_page(path, text):
  """The page's table names the folders of FLOORS, in their order, in its first column."""
  rows = re.findall(r"^\| (`[^|]*/`) \|", text, re.MULTILINE)
  named = [name for row in rows for name in re.findall(r"`([\w/]+/)`", row)]
  expected = [floor for floor in FLOORS if not floor.startswith("aft/")]  # Generated from proto/.
  for i, (name, floor) in enumerate(itertools.zip_longest(named, expected)):
    if name != floor:
      yield 1, f"floor {i + 1} of the table is {name}, of lint.py {floor}"
      return


# ---- Circles -------------------------------------------------------------------------------------
def circles(edges):
  """The circles in `edges` (name -> names), each as a path."""
  done = set()

  def walk(trail):
    for following in sorted(edges[trail[-1]]):
      if following in trail:
        yield trail[trail.index(following):] + [following]
      elif following not in done:
        yield from walk(trail + [following])
    done.add(trail[-1])

  for start in edges:
    if start not in done:
      yield from walk([start])


def check_circles(files):
  """files: path -> text of the sources. Finds headers that include themselves indirectly, and units
  (X.h with X.cc) that include each other. Units of tests may include each other."""
  def unit(path):
    return path.rpartition(".")[0]

  to = {path: [h for h in INCLUDE.findall(text) if h in files] for path, text in files.items()}
  found = list(circles(to))
  if found:  # The code below requires that headers have no circles.
    yield from map(" -> ".join, found)
    return
  # A header without a source file counts as a part of each unit that includes it.
  compiled = {unit(path) for path in files
              if path.endswith((".cc", ".cu")) and not path.startswith("tests/")}

  def reached(path):
    return {unit(path)} if unit(path) in compiled else set().union(*map(reached, to[path]))

  units = {name: set() for name in compiled}
  for path in files:
    if unit(path) in compiled:
      units[unit(path)].update(*map(reached, to[path]))
  for name, others in units.items():
    others.discard(name)  # Its own header.
  for circle in circles(units):
    yield " -> ".join(circle)


# ---- Classes -------------------------------------------------------------------------------------
MEMBER = re.compile(r"^(?! )[\w:<>,*& ]*?\b([A-Z]\w*)::~?\w+\(", re.MULTILINE)


def check_classes(files):
  """files: path -> text. A class of the product is defined in one .cc: one that does not fit is two classes."""
  where = {}
  for path, text in files.items():
    if path.endswith(".cc") and not path.startswith("tests/"):
      for name in set(MEMBER.findall(strip_comments_and_strings(text))):
        where.setdefault((path.rpartition("/")[0], name), []).append(path)
  for (_, name), paths in where.items():
    if len(paths) > 1:
      yield f"{name} is defined in {' and '.join(paths)}"


# ---- Declarations --------------------------------------------------------------------------------
FUNCTION = re.compile(r"^[A-Za-z_][^\n;{}()=]*?[ &*>]([A-Z]\w+)\(", re.MULTILINE)  # outside of classes
MEMBER_FUNCTION = re.compile(r"^ +(?!return\b|throw\b|new\b)[\w:<>,*& ~]*?[ &*>~]([A-Z]\w+)\(", re.MULTILINE)
CALL = re.compile(r"(?<![\w.:])(?<!->)(?:(?:aft|kernels|server|client)::)*([A-Z]\w*[A-Z]\w*)\(")


def check_declared(files):
  """files: path -> text of the sources. A file that calls a function includes its header, directly or not: builds in
  batches compile without it. Only functions whose name is declared in one header, and nowhere else, are checked."""
  code = {path: strip_comments_and_strings(text) for path, text in files.items()}
  to = {path: [h for h in INCLUDE.findall(text) if h in files] for path, text in files.items()}

  @functools.cache
  def reached(path):
    return frozenset([path]).union(*map(reached, to[path]))

  headers, elsewhere = {}, {}
  for path, text in code.items():
    header = re.search(r"\.(h|cuh)$", path)
    for name in FUNCTION.findall(text):
      (headers if header else elsewhere).setdefault(name, set()).add(path)
    for name in MEMBER_FUNCTION.findall(text):
      elsewhere.setdefault(name, set()).add(path)
  # CUDA's own headers include those of the emulated GPU.
  of_one = {name: min(paths) for name, paths in headers.items() if len(paths) == 1 and
            not min(paths).startswith("tests/support/cuda_on_cpu/") and
            all(min(paths) in reached(path) for path in elsewhere.get(name, ()))}
  gmock = {path for path, text in files.items() if "gmock/gmock.h" in INCLUDE.findall(text)}
  for path, text in code.items():
    if "_THAT(" in text and not gmock & reached(path):
      yield f"{path} uses EXPECT_THAT or ASSERT_THAT without gmock/gmock.h"
    for name in sorted(set(CALL.findall(text))):
      if name in of_one and of_one[name] not in reached(path):
        yield f"{path} calls {name} without {of_one[name]}"


# ---- Habits --------------------------------------------------------------------------------------
def strip_comments_and_strings(text):
  """Blanks comments and literals, keeping lines, so that rules about code see only code."""
  token = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL)
  return token.sub(lambda m: " " + "\n" * m.group(0).count("\n"), text)


def find_all(pattern, text, message):
  for found in re.finditer(pattern, text, re.MULTILINE):
    yield text.count("\n", 0, found.start()) + 1, message.format(found.group(0).strip())


def check_macros(path, text):
  return find_all(r"\b(LOG|VLOG|D?LOG_IF|D?CHECK(_(EQ|NE|LT|LE|GT|GE|NOTNULL))?|QCHECK|TORCH_CHECK)\s*\(",
                  strip_comments_and_strings(text),
                  "{0}: the macro comes from LibTorch's headers; use AFT_CHECK or return a Status")


def check_locks(path, text):
  return find_all(r"\babsl::(\w*MutexLock\w*|Mutex|Notification|CondVar)\b|absl/synchronization/\w+",
                  strip_comments_and_strings(re.sub(r'#include "(.*)"', r"\1", text)),
                  "{0}: Debian's Abseil has no race detection; use base/mutex.h")


def check_calls(path, text):
  """Only server/call calls the functions of an engine and writes the access log."""
  if not path.startswith("server/") or path.startswith(("server/call/", "server/engine/", "server/registry/")):
    return
  yield from find_all(r'"request\.done"', re.sub(r"//[^\n]*", "", text), "{0}: server/call writes the access log")
  yield from find_all(
      r"(->|\.)(Generate|GenerateGroup|Score|ScoreTexts|EncodeTexts|AcquireOnly)\(|\bengine\(\)\.\w+\(",
      strip_comments_and_strings(text), "{0}: requests reach an engine through server/call alone")


def check_string_view(path, text):
  return find_all(r"\bstd::(w|u8)?string_view\b", strip_comments_and_strings(text),
                  "{0} is not absl::string_view on Debian 12; use absl's in headers")


def check_guard(path, text):
  if not re.search(r"^#pragma once$", text, re.M):
    yield 1, "a header begins with #pragma once"


def check_length(path, text):
  lines = text.count("\n")
  if lines > MAX_LINES:
    yield lines, f"{lines} lines; split it: {MAX_LINES} is the limit"


# Unit tests of code that has no threads and no locks.
WITHOUT_THREADS = {"config_test", "scheduling_test", "tokenizer_unit_test"}


def check_tsan(path, text):
  """Unit tests whose precompiled headers are neither torch's nor gRPC's run under ThreadSanitizer."""
  for part in re.finditer(r"^set\(AFT_PRECOMPILED test\)(.(?!set\(AFT_PRECOMPILED))*", text, re.MULTILINE | re.DOTALL):
    for test in re.finditer(r"\baft_test\((\w+)([^)]*)\)", part.group(0)):
      if "tsan" not in test.group(2).split() and test.group(1) not in WITHOUT_THREADS:
        line = text.count("\n", 0, part.start() + test.start()) + 1
        yield line, f"{test.group(1)} needs neither torch nor gRPC, so it gets the label tsan"


@functools.cache
def draws(file):
  """Whether a source or header of the tests includes the random inputs, directly or not."""
  headers = INCLUDE.findall(file.read_text())
  return "tests/property/random_inputs.h" in headers or any(
      draws(ROOT / header) for header in headers if header.startswith("tests/") and (ROOT / header).is_file())


def check_random(path, text):
  """cmake/AftTargets.cmake gives the label `random`, which `./dev test --seeds` selects, by this name among the DEPS."""
  variables = dict(re.findall(r"^set\((\w+) ([^)]*)\)", text, re.MULTILINE)) | {"CMAKE_SOURCE_DIR": str(ROOT)}
  def words(value):
    return re.sub(r"\$\{(\w+)\}", lambda found: variables.get(found.group(1), ""), value).replace('"', "").split()
  for test in re.finditer(r"\baft_test\((\w+)\s+SOURCES\s([^)]*?)\sDEPS\s([^)]*)\)", text):
    sources = [(ROOT / path).parent / source for source in words(test.group(2))]
    if "aft::random_inputs" not in words(test.group(3)) and any(draws(s) for s in sources if s.is_file()):
      line = text.count("\n", 0, test.start()) + 1
      yield line, f"{test.group(1)} draws random inputs, so its DEPS name aft::random_inputs"


def check_machine_paths(path, text):
  return find_all(r"(?<![\w.}$~/-])/(work|root|home|Users)/\w[\w./-]*|/tmp/w/", text,
                  "{0}: a path of one machine")


def check_todo(path, text):
  return find_all(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))", text, "{0} needs an issue: TODO(#12)")


# The commonest faults that "Plain English" in CONTRIBUTING.md names, and the files that quote them.
RIDDLES = re.compile(r"(?i:\b(whoever|nobody|somebody|goes on|lets go|so many|takes it not)\b)"
                     r"|(?<!:)(//|# ) ?(Of|That|The same)\b")
QUOTES = ("CONTRIBUTING.md", "tests/lint/", "tests/fuzz/corpus/")


def check_english(path, text):
  if path.startswith(QUOTES):
    return
  for number, line in enumerate(text.splitlines(), 1):
    found = RIDDLES.search(line)
    if found and "lint: allow" not in line:
      yield number, f"{found.group(0).strip()}: see Plain English in CONTRIBUTING.md"


def check_pages(path, text):
  """A page that is named must exist in the repository, relative to the file's folder or one above it."""
  for found in re.finditer(r"[\w./:$-]*\w\.md\b", text):
    name = found.group(0)
    folders = [Path(path).parent, *Path(path).parent.parents]
    # A checkpoint has a card.md of its own.
    if "://" in name or "$" in name or name == "card.md" or any((ROOT / f / name).is_file() for f in folders):
      continue
    yield text.count("\n", 0, found.start()) + 1, f"{name} is not in the repository"


def headings(text):
  """The anchors of a page, as GitHub makes them."""
  text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
  names = [re.sub(r"[^\w -]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", name)).strip().lower().replace(" ", "-")
           for name in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
  return {name if (before := names[:i].count(name)) == 0 else f"{name}-{before}" for i, name in enumerate(names)}


def check_links(path, text):
  prose = re.sub(r"```.*?```|`[^`\n]*`", lambda code: re.sub(r"[^\n]", " ", code.group(0)), text, flags=re.DOTALL)
  for found in re.finditer(r"\]\(([^)\s]+)\)", prose):
    name, _, anchor = found.group(1).partition("#")
    if "://" in name:
      continue
    target = (ROOT / path).parent / name if name else ROOT / path
    line = text.count("\n", 0, found.start()) + 1
    if not target.exists():
      yield line, f"{name} is not in the repository"
    elif anchor and anchor not in headings(target.read_text() if name else text):
      yield line, f"{found.group(1)}: no such heading"


def check_metrics(path, text):
  known = set(re.findall(r"\baft_\w+", (ROOT / "docs/metrics.md").read_text()))
  for found in re.finditer(r"\baft_\w+", text):
    if found.group(0) not in known and re.sub(r"_(bucket|count|sum)$", "", found.group(0)) not in known:
      yield text.count("\n", 0, found.start()) + 1, f"{found.group(0)} is not in docs/metrics.md"


CODE = r"\.(h|cc|cu|cuh)$"
ANY = r"(\.(h|cc|cu|cuh|py|sh|proto|cmake|md|txt|json|ya?ml|textproto)|Dockerfile|/?dev|\.ci/run)$"
RULES = [  # (name, which files, check)
    ("includes", CODE, check_includes),
    ("macros", CODE, check_macros),
    ("locks", CODE, check_locks),
    ("calls", CODE, check_calls),
    ("string-view", r"\.(h|cuh)$", check_string_view),
    ("guard", r"\.(h|cuh)$", check_guard),
    ("length", r"(\.(h|cc|cu|cuh|py|sh|proto|cmake)|CMakeLists\.txt|^dev)$", check_length),
    ("tsan", r"^tests/unit/\w+/CMakeLists\.txt$", check_tsan),
    ("random", r"^tests/.*CMakeLists\.txt$", check_random),
    ("machine-paths", ANY, check_machine_paths),
    ("todo", ANY, check_todo),
    ("english", ANY, check_english),
    ("pages", ANY, check_pages),
    ("links", r"\.md$", check_links),
    ("metrics", r"^(README|docs/(routers|security|troubleshooting|upgrading)|deploy/.*)\.md$", check_metrics),
    ("floors", r"^CONTRIBUTING\.md$", check_floors_page),
]


def check(path, text):
  """Findings of one file as (line, rule, message)."""
  return [(line, name, message)
          for name, files, rule in RULES if re.search(files, path)
          for line, message in rule(path, text)]


# Files of other projects, unchanged: the rules are not for them.
COPIES = ("model/tokenizer/world/rwkv_vocab_v20230424.txt",)


def repository_files():
  listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                          cwd=ROOT, check=True, capture_output=True, text=True).stdout
  return [p for p in listed.split("\0") if p and (ROOT / p).is_file() and not p.startswith(("tests/lint/", *COPIES))]


def main(arguments):
  if arguments == ["--self-test"]:
    import samples  # samples.py next to this file
    return samples.self_test(check, check_circles, check_classes, check_declared, check_order, check_used,
                             [name for name, _, _ in RULES])
  if not arguments and not (ROOT / ".git").exists():
    print("skipped: git lists the files, and this folder is not a clone")
    return 77
  paths = [str(Path(a).resolve().relative_to(ROOT)) for a in arguments] or repository_files()
  files = {path: (ROOT / path).read_text(errors="replace") for path in paths}
  findings = [f"{path}:{line}: [{rule}] {message}" for path, text in files.items()
              for line, rule, message in check(path, text)]
  findings += [f"tests/lint/lint.py: [order] {message}" for message in check_order(FLOORS)]
  if not arguments:
    code = {path: text for path, text in files.items() if re.search(CODE, path)}
    findings += [f"tests/lint/lint.py: [used] {unused}" for unused in check_used(code, FLOORS, THIRD_PARTIES)]
    findings += [f"[circles] {circle}" for circle in check_circles(code)]
    findings += [f"[classes] {torn}" for torn in check_classes(code)]
    findings += [f"[declared] {call}" for call in check_declared(code)]
  print("\n".join([*findings, f"lint: {len(files)} files, {len(findings)} findings"]))
  return 1 if findings else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
