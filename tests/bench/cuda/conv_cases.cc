#include <algorithm>
#include <cstdint>

#include "model/kernels/cuda/conv/conv.h"
#include "tests/bench/cuda/cases.h"

namespace aft::kernels::cuda {

void AddConv(Bench& bench, int64_t heads, int64_t taps) {
  ConvModel model;
  model.hid = bench.scale().hid();
  model.heads = std::min(heads, model.hid);
  model.taps = taps;
  const DeviceArray<float> filter = Filled(taps * model.heads, -1, 1);
  model.filter = filter.get();
  const ConvStateLayout layout = model.layout();
  const int64_t packed = 2 * model.hid + model.heads;
  const auto width = static_cast<double>(model.hid);
  const auto keys = static_cast<double>(model.heads);
  {
    const Decode decode(bench.scale().rows(512), layout.Floats(), 1000);
    const Matrices matrices(decode.rows, packed, model.hid);
    const double per_row = 8 * width + 16 * keys + 4 * static_cast<double>(taps) * (width + keys);
    bench.Add({.name = "conv_step",
               .shape = absl::StrCat("h=", model.heads, " s=", taps, " fp32 ring, ",
                                     decode.Name(matrices)),
               .bytes = per_row * static_cast<double>(decode.rows) + matrices.bytes(decode.rows),
               .run = [&](Stream stream, int) {
                 return ConvStep(model, decode.step(), matrices.in(), decode.states(), matrices.y(),
                                 stream);
               }});
  }
  {
    const Prompts prompts(bench.scale().rows(16), bench.scale().tokens(1024));
    const Decode pool(prompts.rows, layout.Floats(), 0);
    const Matrices matrices(prompts.tokens, packed, model.hid);
    const DeviceArray<float> workspace(
        static_cast<size_t>(ConvWorkspaceFloats(model, prompts.rows, prompts.tokens)));
    bench.Add({.name = "conv_prefill",
               .shape = absl::StrCat("h=", model.heads, " s=", taps, ", ", prompts.Name(matrices)),
               .bytes = matrices.bytes(prompts.tokens),
               .run = [&](Stream stream, int) {
                 return ConvPrefill(model, prompts.chunks(), matrices.in(), pool.states(),
                                    matrices.y(), workspace.get(), stream);
               }});
  }
}

}  // namespace aft::kernels::cuda
