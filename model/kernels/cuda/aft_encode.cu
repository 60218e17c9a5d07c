#include "model/kernels/cuda/aft_prefill.h"

namespace aft::kernels::cuda {

int64_t AftEncodeWorkspaceFloats(const AftModel& model, int64_t sequences, int64_t tokens) {
  return AftCausalWorkspaceFloats(model, sequences, tokens);
}

int AftEncode(const AftModel& model, const Texts& texts, In qkv, Out y, float* workspace,
              Stream stream) {
  if (!AftTypes(qkv, y)) return cudaErrorInvalidValue;
  if (texts.sequences == 0 || texts.tokens == 0) return cudaSuccess;
  AftArgs args;
  args.model = model;
  args.rows = {texts.sequences, nullptr, nullptr, texts.offset, texts.mask};
  args.qkv = qkv.data;
  args.qkv_stride = qkv.stride;
  args.y = y;
  args.sums = workspace;
  args.triples = model.prefix_block > 0 ? 2 : 1;
  return AftCausal(args, texts.tokens, texts.longest, qkv, stream);
}

}  // namespace aft::kernels::cuda
