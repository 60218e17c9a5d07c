#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "model/kernels/wkv/wkv.h"
#include "model/mixers/families.h"

namespace aft {
namespace {

std::vector<float> Values(const MixerTables& tables, const char* name) {
  const at::Tensor& table = tables.at(name);
  return {table.const_data_ptr<float>(), table.const_data_ptr<float>() + table.numel()};
}

// What both have in common: they run from step to step only, because a state that decays has no
// form for masks and for encoders (NetworkConfig allows these kinds only in language models).
class WkvMixer : public Mixer {
 public:
  int64_t encode_scratch_floats(int64_t /*tokens*/) const override { return 0; }
  void Encode(PackedIn /*in*/, const SequenceBatch& /*batch*/, MixerOut /*out*/,
              const Workspace& /*workspace*/) const override {
    AFT_CHECK(false);
  }
  void EncodePairs(PackedIn /*queries*/, PackedIn /*keys*/, const SequenceBatch& /*batch*/,
                   MixerOut /*out*/, const Workspace& /*workspace*/) const override {
    AFT_CHECK(false);
  }
};

class Wkv4Mixer : public WkvMixer {
 public:
  Wkv4Mixer(int64_t hid, const MixerTables& tables)
      : decay_(Values(tables, "decay")), bonus_(Values(tables, "bonus")) {
    for (float& decay : decay_) decay = -std::exp(decay);
    params_ = {hid, decay_.data(), bonus_.data()};
  }

  StateSpec state_spec() const override { return WkvStateSpec(kernels::Wkv4StateFloats(params_)); }
  int64_t table_bytes() const override {
    return static_cast<int64_t>((decay_.size() + bonus_.size()) * sizeof(float));
  }
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
  std::vector<float> decay_;
  std::vector<float> bonus_;
  kernels::Wkv4Params params_;  // points to the two above
};

class Wkv7Mixer : public WkvMixer {
 public:
  Wkv7Mixer(const MixerConfig& config, int64_t hid, const MixerTables& tables) {
    for (const char* name :
         {"key_scale", "key_rate", "bonus", "group_norm.weight", "group_norm.bias"}) {
      const std::vector<float> values = Values(tables, name);
      tables_.insert(tables_.end(), values.begin(), values.end());
    }
    const float* const data = tables_.data();
    params_ = {hid, config.heads, data, data + hid, data + 2 * hid, data + 3 * hid, data + 4 * hid};
  }

  StateSpec state_spec() const override { return WkvStateSpec(kernels::Wkv7StateFloats(params_)); }
  int64_t table_bytes() const override {
    return static_cast<int64_t>(tables_.size() * sizeof(float));
  }
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

  std::vector<float> tables_;   // [5, hid]
  kernels::Wkv7Params params_;  // points to tables_
};

}  // namespace

std::unique_ptr<Mixer> MakeWkvMixer(const MixerConfig& config, int64_t hid,
                                    const MixerTables& tables) {
  if (config.kind == MixerKind::kWkv4) return std::make_unique<Wkv4Mixer>(hid, tables);
  return std::make_unique<Wkv7Mixer>(config, hid, tables);
}

}  // namespace aft
