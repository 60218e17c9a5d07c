#include <cmath>
#include <cstdint>
#include <string>

#include "model/kernels/cuda/attention/attention.h"
#include "tests/bench/cuda/cases.h"

namespace aft::kernels::cuda {
namespace {

AttentionParams Attention(const Scale& scale, Score score, int64_t block_size, int64_t capacity) {
  AttentionParams params;
  params.score = score;
  params.heads = scale.smoke ? 2 : 16;
  params.score_width = scale.hid() / params.heads;
  params.value_width = params.score_width;
  params.scale = 1 / std::sqrt(static_cast<float>(params.score_width));
  params.block_size = block_size;
  params.global_token = block_size > 0;
  params.capacity = capacity;
  return params;
}

std::string NameOf(const AttentionParams& params) {
  if (params.block_size > 0) return absl::StrCat("block-local b=", params.block_size);
  return params.score == Score::kDot ? "dot product" : "cosine";
}

}  // namespace

void AddAttentionStep(Bench& bench, int64_t rows, Score score, int64_t block_size,
                      int64_t context) {
  const AttentionParams params = Attention(bench.scale(), score, block_size, context + 1);
  const AttentionStateLayout layout(params);
  // Block-local: the position is in the middle of a block, so a token sees one and a half blocks.
  const int64_t position = block_size > 0 ? 10 * block_size + block_size / 2 : context;
  const int64_t seen = block_size > 0 ? block_size + block_size / 2 + 1 : context + 1;
  const Decode decode(bench.scale().rows(rows), layout.Floats(), position);
  const int64_t packed = params.StrengthColumn() + (score == Score::kCosine ? params.heads : 0);
  const Matrices matrices(decode.rows, packed, params.hid());
  const DeviceArray<float> workspace(
      static_cast<size_t>(AttentionStepWorkspaceFloats(params, decode.rows)));
  bench.Add({.name = "attention_step",
             .shape = absl::StrCat(NameOf(params), ", ", seen, " keys, ", decode.Name(matrices)),
             .bytes = 8.0 * static_cast<double>(decode.rows * params.hid() * (seen + 1)) +
                      matrices.bytes(decode.rows),
             .run = [&](Stream stream, int) {
               return AttentionStep(params, decode.step(), matrices.in(), decode.states(),
                                    matrices.y(), workspace.get(), stream);
             }});
}

void AddAttentionPrefill(Bench& bench, int64_t rows, int64_t tokens, int64_t block_size) {
  const AttentionParams params =
      Attention(bench.scale(), Score::kDot, block_size, bench.scale().tokens(tokens));
  const AttentionStateLayout layout(params);
  const Prompts prompts(bench.scale().rows(rows), bench.scale().tokens(tokens));
  const Decode pool(prompts.rows, layout.Floats(), 0);
  const Matrices matrices(prompts.tokens, params.StrengthColumn(), params.hid());
  const DeviceArray<float> workspace(
      static_cast<size_t>(AttentionWorkspaceFloats(params, prompts.tokens)));
  const double seen = block_size > 0 ? 1.5 * static_cast<double>(block_size)
                                     : static_cast<double>(prompts.longest) / 2;
  bench.Add({.name = "attention_prefill",
             .shape = absl::StrCat(NameOf(params), ", ", prompts.Name(matrices)),
             .bytes = matrices.bytes(prompts.tokens),
             .flops = 4 * seen * static_cast<double>(prompts.tokens * params.hid()),
             .run = [&](Stream stream, int) {
               return AttentionPrefill(params, prompts.chunks(), matrices.in(), pool.states(),
                                       matrices.y(), workspace.get(), stream);
             }});
}

}  // namespace aft::kernels::cuda
