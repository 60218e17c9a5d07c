"""Samples that prove the rules of lint.py: each bad one must fire its rule and nothing else."""

# (rule, path, text)
BAD = [
    ("includes", "server/engine/loop.cc", '#include "grpcpp/grpcpp.h"\n'),
    ("includes", "server/scheduling/queue.cc", '#include "aft/v1/inference.pb.h"\n'),
    ("includes", "server/registry/registry.cc", '#include "aft/v1/models.grpc.pb.h"\n'),
    ("includes", "server/api/aft/codec.cc", "#include <ATen/core/Tensor.h>\n"),
    ("includes", "server/app/main.cc", '#include "c10/core/Device.h"\n'),
    ("includes", "client/lib/aft_client.cc", '#include "torch/types.h"\n'),
    ("includes", "client/aftctl/main.cc", "#include <cuda_runtime.h>\n"),
    ("includes", "server/engine/loop.cc", "#  include <cuda_fp16.h>\n"),
    ("includes", "model/mixers/aft_local.cc", '#include "grpcpp/grpcpp.h"\n'),
    ("includes", "model/config/config.cc", '#include "google/protobuf/message.h"\n'),
    ("includes", "model/load/load.cc", '#include "server/engine/engine.h"\n'),
    ("includes", "model/kernels/aft_local_cpu.cc", '#include "ATen/core/Tensor.h"\n'),
    ("includes", "model/kernels/aft_local.cu", '#include "model/mixers/mixer.h"\n'),
    ("includes", "model/mixers/aft_local.cc", '#include "model/network/network.h"\n'),
    ("includes", "model/mixers/aft_local.cc", '#include "hwy/highway.h"\n'),
    ("includes", "model/api/model_runner.h", '#pragma once\n#include "ATen/core/Tensor.h"\n'),
    ("includes", "model/train/trainer.cc", "#include <torch/torch.h>\n"),
    ("includes", "tests/unit/model/mixer_test.cc", "#include <torch/all.h>\n"),
    ("includes", "server/engine/loop.cc", '#include "prometheus/counter.h"\n'),
    ("includes", "server/scheduling/queue.cc", '#include "server/engine/engine.h"\n'),
    ("includes", "server/engine/loop.cc", '#include "server/api/aft/service.h"\n'),
    ("includes", "server/engine/loop.cc", '#include "model/state/state_pool.h"\n'),
    ("includes", "client/lib/aft_client.cc", '#include "server/api/aft/service.h"\n'),
    ("includes", "base/check.cc", '#include "server/observability/log.h"\n'),
    ("includes", "model/kernels/aft/aft.cc", "#include <cuda_runtime.h>\n"),
    ("includes", "model/state/pool.cc", '#include "ATen/core/Tensor.h"\n'),
    ("includes", "server/newcomer/a.cc", '#include "base/check.h"\n'),
    ("calls", "server/api/aft/codec.cc", 'void F() { log::Info("request.done", {}); }\n'),
    ("calls", "server/api/oip/answer.cc", "void F() { model->generate->Generate(request, sink); }\n"),
    ("calls", "server/transport/carrier.cc", "void F() { model.engine().Reserve(client); }\n"),
    ("macros", "server/engine/loop.cc", 'void F() { LOG(INFO) << "x"; }\n'),
    ("macros", "model/layers/linear.cc", "void F(int n) { CHECK_EQ(n, 1); }\n"),
    ("macros", "model/layers/linear.cc", "void F(int n) { TORCH_CHECK (n == 1); }\n"),
    ("locks", "server/engine/loop.cc", "absl::Mutex mutex;\n"),
    ("locks", "server/engine/loop.cc", '#include "absl/synchronization/notification.h"\n'),
    ("string-view", "base/text.h", "#pragma once\nvoid F(std::string_view text);\n"),
    ("guard", "base/text.h", "#ifndef AFT_BASE_TEXT_H_\n#define AFT_BASE_TEXT_H_\n#endif\n"),
    ("length", "server/engine/loop.cc", "int a;\n" * 501),
    ("tsan", "tests/unit/call/CMakeLists.txt", "set(AFT_PRECOMPILED test)\naft_test(a_test SOURCES tsan.cc\n  LABELS unit)\n"),
    ("random", "tests/property/CMakeLists.txt", "aft_test(a_test SOURCES prefix_test.cc\n  DEPS aft::base LABELS property)\n"),
    ("machine-paths", "README.md", "Look into /home/someone/aft.\n"),
    ("machine-paths", "dev", "cp a /root/cache/b\n"),
    ("todo", "server/engine/loop.cc", "// TODO: finish\n"),
    ("todo", "dev", "# FIXME(someone)\n"),
    ("english", "server/engine/loop.cc", "int a;  // Of the model.\n"),
    ("english", "server/engine/loop.cc", "// Nobody waits.\n"),
    ("english", "docs/api.md", "The stream goes on.\n"),
    ("english", "dev", "# The same for tests.\n"),
    ("pages", "model/kernels/aft/aft.cc", "// Explained in recurrences.md.\n"),
    ("pages", "client/README.md", "See the service, serving.md.\n"),
    ("links", "client/README.md", "See [the service](../serve).\n"),
    ("links", "client/README.md", "# One\n```\n# Two\n```\n[there](#two)\n"),
    ("links", "client/README.md", "[there](../proto/README.md#no-such-heading)\n"),
    ("metrics", "docs/troubleshooting.md", "Look at `aft_ttft_seconds_bucket` and at `aft_no_such_seconds`.\n"),
    ("floors", "CONTRIBUTING.md", "| folder | what |\n|---|---|\n| `base/` | checks |\n| `client/` | library |\n"),
]

GOOD = [  # (path, text)
    ("docs/api.md", "so many  <!-- lint: allow -->\n"),
    ("tests/fuzz/corpus/a.textproto", "# Nobody waits.\n"),
    ("server/api/aft/service.cc", '#include "grpcpp/grpcpp.h"\n#include "aft/v1/inference.grpc.pb.h"\n'
                              '#include "server/engine/engine.h"\n'),
    ("server/config/loader.cc", '#include "aft/config/v1/server_config.pb.h"\n'),
    ("server/engine/loop.cc", '#include "model/api/model_runner.h"\n'
                              "void F() { AFT_CHECK(true); }  // Not a CHECK(x) of others\n"
                              'const char* text = "LOG(INFO) absl::Mutex";\n'),
    ("server/http/http_server.cc", '#include "boost/beast/core.hpp"\n#include "server/observability/log.h"\n'),
    ("model/kernels/aft_local_cpu.cc", '#include "hwy/highway.h"\n#include "model/kernels/aft_local.h"\n'),
    ("model/mixers/aft_local.cc", '#include "ATen/ops/exp.h"\n#include "model/state/state_pool.h"\n'),
    ("tests/integration/one_process_test.cc", '#include "ATen/ops/mm.h"\n#include "grpcpp/grpcpp.h"\n'),
    ("base/text.h", "#pragma once\nvoid F(absl::string_view text);  // not std::string_view\n"),
    ("server/engine/loop.cc", "// TODO(#12): finish\n" + "int a;\n" * 499),
    ("tests/unit/call/CMakeLists.txt", "set(AFT_PRECOMPILED test)\naft_test(a_test SOURCES a.cc LABELS unit tsan)\n"
                                       "set(AFT_PRECOMPILED grpc_test)\naft_test(b_test SOURCES b.cc LABELS unit)\n"),
    ("tests/gpu_model/CMakeLists.txt", "set(deps aft::base\n  aft::random_inputs)\naft_test(a_test\n"
                                       "  SOURCES ${CMAKE_SOURCE_DIR}/tests/property/prefix_test.cc\n  DEPS ${deps})\n"
                                       "aft_test(b_test SOURCES ${none} cuda_queue_test.cc DEPS aft::base)\n"),
    ("Dockerfile", "COPY a /opt/aft/home/b\n"),
    ("dev", 'CACHE="$HOME/work/cache" OTHER="~/home/x"\n'),
    ("client/README.md", "# A `name.of` it\n## Two\n## Two\n[a](#a-nameof-it) [b](#two-1) [c](../proto/README.md#statuses) "
                         "[d](https://example.org/#x) `[e](none)`\n"),
    ("model/kernels/aft/aft.cc", "// README.md; proto/README.md; https://example.org/other.md\n"),
]

# Files that include each other, and whether that is a circle.
TREES = [
    (True, {"a.h": '#include "b.h"\n', "b.h": '#include "c.h"\n', "c.h": '#include "a.h"\n'}),
    (True, {"a.h": '#include "a.h"\n'}),
    (True, {"a.h": "", "a.cc": '#include "a.h"\n#include "b.h"\n',
            "b.h": "", "b.cc": '#include "b.h"\n#include "a.h"\n'}),
    (True, {"a.h": "", "a.cc": '#include "part.h"\n', "part.h": '#include "b.h"\n',
            "b.h": '#include "a.h"\n', "b.cu": '#include "b.h"\n'}),
    (False, {"a.h": "", "a.cc": '#include "a.h"\n#include "part-inl.h"\n', "part-inl.h": '#include "a.h"\n'}),
    (False, {"a.h": '#include "c.h"\n', "b.h": '#include "c.h"\n', "c.h": "",
             "d.cc": '#include "a.h"\n#include "b.h"\n'}),
]

# Floors, and whether each names only those before it.
ORDERS = [
    (True, {"a/": ["b/"], "b/": []}),
    (True, {"a/": ["a/"]}),
    (False, {"a/": [], "b/": ["a/"]}),
]


USED = [  # (whether a permission is unused, files, floors, third parties)
    (False, {"model/api/a.h": '#include "base/a.h"\n#include "re2/re2.h"\n'},
     {"model/api/": ["base/"]}, {"RE2": ("re2/", ["model/api/"])}),
    (True, {"model/api/a.h": "", "model/config/a.h": '#include "base/a.h"\n'}, {"model/api/": ["base/"]}, {}),
    (True, {"model/api/a.h": "", "base/a.h": '#include "re2/re2.h"\n'}, {}, {"RE2": ("re2/", ["model/api/"])}),
]


CLASSES = [  # (whether it is wrong, files)
    (True, {"server/a.cc": "int A::One() {\n}\n", "server/b.cc": "std::vector<int> A::Two() {\n}\n"}),
    (True, {"server/a.cc": "A::A(int a) {\n}\n", "server/b.cc": "A::~A() {\n}\n"}),
    (False, {"server/a.cc": "int A::One() {\n}\n", "client/a.cc": "int A::One() {\n}\n"}),
    (False, {"server/a.cc": "int A::One() {\n}\n", "server/b.cc": "int B::One() {\n  return A::Two();\n}\n"}),
]


CALLS = [  # (whether a header is missing, files)
    (True, {"a.h": "int MakeIt(int a);\n", "a.cc": '#include "a.h"\nint MakeIt(int a) {\n', "b.cc": "int b = MakeIt(1);\n"}),
    (True, {"a.h": "int MakeIt(int a);\n", "b.cc": "int b = aft::MakeIt(1);\n"}),
    (False, {"a.h": "int MakeIt(int a);\n", "b.h": '#include "a.h"\n', "b.cc": '#include "b.h"\nint b = MakeIt(1);\n'}),
    (False, {"a.h": "int MakeIt(int a);\n", "b.cc": "static int MakeIt() {\nint b = MakeIt(1);\n"}),
    (False, {"a.h": "int MakeIt(int a);\n", "b.cc": "int b = it.MakeIt(1);  // MakeIt(1)\n"}),
    (True, {"a.cc": '#include "gtest/gtest.h"\nEXPECT_THAT(a, b);\n'}),
    (False, {"a.h": '#include "gmock/gmock.h"\n', "a.cc": '#include "a.h"\nEXPECT_THAT(a, b);\n'}),
]


def self_test(check, check_circles, check_classes, check_declared, check_order, check_used, rules):
  failures = []
  for rule, path, text in BAD:
    found = {name for _, name, _ in check(path, text)}
    if found != {rule}:
      failures.append(f"bad sample {path} ({text[:60]!r}): expected {rule}, found {sorted(found)}")
  for path, text in GOOD:
    found = check(path, text)
    if found:
      failures.append(f"good sample {path}: {found}")
  for wrong, files in TREES:
    if bool(list(check_circles(files))) != wrong:
      failures.append(f"circle {'not found' if wrong else 'found'} in {files}")
  for wrong, files in CLASSES:
    if bool(list(check_classes(files))) != wrong:
      failures.append(f"torn class {'not found' if wrong else 'found'} in {files}")
  for wrong, files in CALLS:
    if bool(list(check_declared(files))) != wrong:
      failures.append(f"missing header {'not found' if wrong else 'found'} in {files}")
  for wrong, floors in ORDERS:
    if bool(list(check_order(floors))) != wrong:
      failures.append(f"order of {floors}: expected {'a finding' if wrong else 'none'}")
  for unused, *arguments in USED:
    if bool(list(check_used(*arguments))) != unused:
      failures.append(f"unused permission {'not found' if unused else 'found'} in {arguments}")
  for rule in set(rules) - {rule for rule, _, _ in BAD}:
    failures.append(f"rule {rule} has no bad sample")
  print("\n".join(failures) if failures else f"self-test: {len(BAD)} bad and {len(GOOD)} good samples, "
        f"{len(TREES)} trees, {len(ORDERS)} orders")
  return 1 if failures else 0
