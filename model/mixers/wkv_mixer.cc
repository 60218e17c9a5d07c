#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/config/tensors.h"
#include "model/kernels/wkv/wkv.h"
#include "model/mixers/families.h"

namespace aft {

std::vector<float> FoldWkvTables(const MixerConfig& config, int64_t hid,
                                 const MixerTables& tables) {
  std::vector<float> folded;
  for (const TensorSpec& spec : ExpectedMixerTables(config, hid)) {
    const at::Tensor& table = tables.at(spec.name);
    const float* const values = table.const_data_ptr<float>();
    folded.insert(folded.end(), values, values + table.numel());
    if (spec.name != "decay") continue;
    for (float& decay : folded) decay = -std::exp(decay);  // the first table of its kind
  }
  return folded;
}

kernels::Wkv4Params Wkv4ParamsOf(int64_t hid, const float* tables) {
  return {hid, tables, tables + hid};
}

kernels::Wkv7Params Wkv7ParamsOf(const MixerConfig& config, int64_t hid, const float* tables) {
  return {hid,
          config.heads,
          tables,
          tables + hid,
          tables + 2 * hid,
          tables + 3 * hid,
          tables + 4 * hid,
          config.initial_state ? tables + 5 * hid : nullptr};
}

namespace {

// Both kinds run from step to step only, because a state that decays has no form for masks and for
// encoders (NetworkConfig allows these kinds only in language models).
class WkvMixer : public Mixer {
 public:
  explicit WkvMixer(std::vector<float> tables) : tables_(std::move(tables)) {}

  int64_t table_bytes() const override {
    return static_cast<int64_t>(tables_.size() * sizeof(float));
  }
  int64_t encode_scratch_floats(int64_t /*tokens*/) const override { return 0; }
  void Encode(PackedIn /*in*/, const SequenceBatch& /*batch*/, MixerOut /*out*/,
              const Workspace& /*workspace*/) const override {
    AFT_CHECK(false);
  }
  void EncodePairs(PackedIn /*queries*/, PackedIn /*keys*/, const SequenceBatch& /*batch*/,
                   MixerOut /*out*/, const Workspace& /*workspace*/) const override {
    AFT_CHECK(false);
  }

 protected:
  const std::vector<float> tables_;
};

class Wkv4Mixer : public WkvMixer {
 public:
  Wkv4Mixer(int64_t hid, std::vector<float> tables)
      : WkvMixer(std::move(tables)), params_(Wkv4ParamsOf(hid, tables_.data())) {}

  StateSpec state_spec() const override { return WkvStateSpec(kernels::Wkv4StateFloats(params_)); }
  int64_t scratch_floats() const override { return 0; }

  void Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
               const Workspace& workspace) const override {
    if (batch.rows == 0) return;
    constexpr int64_t kUnitsPerThread = 16;  // of one token: some 10 us
    const int64_t tokens_per_row = std::max<int64_t>(batch.offset[batch.rows] / batch.rows, 1);
    workspace.executor->For(kernels::Wkv4Units(params_, batch.rows),
                            std::max<int64_t>(kUnitsPerThread / tokens_per_row, 1),
                            [&](int64_t begin, int64_t end, int) {
                              kernels::Wkv4Forward(params_, batch, in.data, in.stride, state,
                                                   out.data, out.stride, begin, end);
                            });
  }

 private:
  const kernels::Wkv4Params params_;
};

class Wkv7Mixer : public WkvMixer {
 public:
  Wkv7Mixer(const MixerConfig& config, int64_t hid, std::vector<float> tables)
      : WkvMixer(std::move(tables)), params_(Wkv7ParamsOf(config, hid, tables_.data())) {}

  StateSpec state_spec() const override { return WkvStateSpec(kernels::Wkv7StateFloats(params_)); }
  int64_t scratch_floats() const override { return kernels::Wkv7ScratchFloats(params_); }

  void Forward(PackedIn in, const RaggedBatch& batch, StateView state, MixerOut out,
               const Workspace& workspace) const override {
    if (batch.rows == 0) return;
    workspace.executor->For(
        batch.rows * params_.heads, Grain(batch.offset[batch.rows] / batch.rows),
        [&](int64_t begin, int64_t end, int thread) {
          kernels::Wkv7Forward(params_, batch, in.data, in.stride, state, out.data, out.stride,
                               workspace.scratch + thread * workspace.scratch_stride, begin, end);
        });
  }

 private:
  // The least number of units per thread: those that take some 10 us.
  int64_t Grain(int64_t tokens_per_row) const {
    constexpr int64_t kNumbersPerThread = int64_t{1} << 16;
    const int64_t unit =
        params_.head_width() * params_.head_width() * std::max<int64_t>(tokens_per_row, 1);
    return std::max<int64_t>(kNumbersPerThread / unit, 1);
  }

  const kernels::Wkv7Params params_;
};

}  // namespace

std::unique_ptr<Mixer> MakeWkvMixer(const MixerConfig& config, int64_t hid,
                                    const MixerTables& tables) {
  std::vector<float> folded = FoldWkvTables(config, hid, tables);
  if (config.kind == MixerKind::kWkv4) return std::make_unique<Wkv4Mixer>(hid, std::move(folded));
  return std::make_unique<Wkv7Mixer>(config, hid, std::move(folded));
}

}  // namespace aft
