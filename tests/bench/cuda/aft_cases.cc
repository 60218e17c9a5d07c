#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "model/kernels/cuda/aft/aft.h"
#include "tests/bench/cuda/cases.h"

namespace aft::kernels::cuda {
namespace {

struct AftCase {
  AftCase(const Scale& scale, int64_t window, Number ring)
      : bias(Filled(Floats(scale, window), -1, 1)) {
    model.hid = scale.hid();
    model.window = window;
    model.ring = ring;
    model.bias = window > 0 ? bias.get() : nullptr;
  }
  static int64_t Floats(const Scale&, int64_t window) { return std::max<int64_t>(window, 1); }
  double ring_bytes() const { return model.ring == Number::kBf16 ? 2 : 4; }
  std::string name() const {
    if (model.window == 0) return "simple";
    return absl::StrCat("s=", model.window, model.ring == Number::kBf16 ? " bf16" : " fp32",
                        " ring");
  }

  DeviceArray<float> bias;
  AftModel model;
};

}  // namespace

void AddAftStep(Bench& bench, int64_t rows, int64_t window, Number ring, bool lookahead,
                int64_t position) {
  const AftCase aft(bench.scale(), window, ring);
  const int64_t hid = aft.model.hid;
  const Decode decode(bench.scale().rows(rows), aft.model.layout().Floats(), position);
  const Matrices matrices(decode.rows, 3 * hid, hid);
  const double held = static_cast<double>(std::min(position, aft.model.layout().ring_rows()));
  // A step reads and writes the prefix, reads the ring, and writes one token of the ring.
  double bytes = 24 + (window > 1 ? 2 * aft.ring_bytes() * (held + 1) : 0);

  AftLookahead ahead;
  if (lookahead) ahead.rows = AftLookaheadRows(aft.model);
  const auto cycle = std::max<int64_t>(ahead.rows, 1);
  const DeviceArray<float> sums =
      Filled(lookahead ? decode.rows * AftLookaheadFloats(aft.model, ahead.rows) : 1, 0.5F, 1.5F);
  // In every step a different part of the rows makes its sums, as in a real server.
  std::vector<int32_t> ages;
  for (int64_t turn = 0; turn < cycle; ++turn) {
    for (int64_t i = 0; i < decode.rows; ++i) {
      ages.push_back(static_cast<int32_t>((turn + i) % cycle));
    }
  }
  const DeviceArray<int32_t> age(ages);
  if (ahead.rows > 0) {
    ahead.sums = sums.get();
    ahead.slot_stride = AftLookaheadFloats(aft.model, ahead.rows);
    const auto r = static_cast<double>(ahead.rows);
    // A step reads 1/R of the ring and the tokens since, reads and writes three sums, and writes
    // one token.
    bytes = 24 + 2 * aft.ring_bytes() * (held / r + (r - 1) / 2 + 1) + 24;
  } else if (lookahead) {
    return;  // lookahead is not worthwhile for this window
  }

  bench.Add({.name = "aft_step",
             .shape = absl::StrCat(aft.name(), lookahead ? absl::StrCat(" R=", ahead.rows) : "",
                                   ", ", decode.Name(matrices)),
             .bytes = bytes * static_cast<double>(decode.rows * hid) + matrices.bytes(decode.rows),
             .run =
                 [&](Stream stream, int turn) {
                   StepRows rows_now = decode.step();
                   rows_now.age = lookahead ? age.get() + turn * decode.rows : nullptr;
                   return AftStep(aft.model, rows_now, matrices.in(), decode.states(), ahead,
                                  matrices.y(), stream);
                 },
             .turns = static_cast<int>(cycle)});
}

void AddAftPrefill(Bench& bench, int64_t rows, int64_t tokens, int64_t window) {
  const AftCase aft(bench.scale(), window, Number::kBf16);
  const int64_t hid = aft.model.hid;
  const Prompts prompts(bench.scale().rows(rows), bench.scale().tokens(tokens));
  const Decode pool(prompts.rows, aft.model.layout().Floats(), 0);
  const Matrices matrices(prompts.tokens, 3 * hid, hid);
  const DeviceArray<float> workspace(
      static_cast<size_t>(AftPrefillWorkspaceFloats(aft.model, prompts.rows, prompts.tokens)));
  const double seen =
      std::min<double>(static_cast<double>(window), static_cast<double>(prompts.longest) / 2);
  bench.Add({.name = "aft_prefill",
             .shape = absl::StrCat(aft.name(), ", ", prompts.Name(matrices)),
             .bytes = matrices.bytes(prompts.tokens),
             .flops = 4 * seen * static_cast<double>(prompts.tokens * hid),
             .run = [&](Stream stream, int) {
               return AftPrefill(aft.model, prompts.chunks(), matrices.in(), pool.states(),
                                 matrices.y(), workspace.get(), stream);
             }});
}

}  // namespace aft::kernels::cuda
