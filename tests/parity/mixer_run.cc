#include "tests/parity/mixer_run.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/empty.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "model/config/tensors.h"
#include "tests/support/serial_executor.h"

namespace aft {

MixerRun::MixerRun(const MixerConfig& config, int64_t hid, const MixerTables& tables,
                   int64_t max_tokens)
    : hid_(hid), width_(PackedWidth(config, hid)) {
  MixerOptions options;
  if (StateGrows(config)) options.max_seq_len = max_tokens;
  absl::StatusOr<std::unique_ptr<Mixer>> mixer = MakeMixer(config, hid, tables, options);
  if (!mixer.ok()) ADD_FAILURE() << mixer.status();
  AFT_CHECK(mixer.ok());
  mixer_ = *std::move(mixer);
}

at::Tensor MixerRun::Forward(const at::Tensor& packed, int64_t chunk,
                             int64_t first_generated) const {
  AFT_CHECK(packed.dim() == 2 && packed.size(1) == width_ && packed.is_contiguous());
  const int64_t tokens = packed.size(0);
  StatePool states = *StatePool::Create({mixer_->state_spec()}, 1);
  const at::Tensor scratch = at::empty({mixer_->scratch_floats()}, at::kFloat);
  const SerialExecutor executor;
  at::Tensor y = at::empty({tokens, hid_}, at::kFloat);
  const int32_t slot = 0;
  for (int64_t t = 0; t < tokens;) {
    const bool is_generated = t >= first_generated;
    const int64_t end = std::min(t + chunk, is_generated ? tokens : first_generated);
    const int64_t offsets[] = {0, end - t};
    const auto generated = static_cast<uint8_t>(is_generated);
    mixer_->Forward({packed.const_data_ptr<float>() + t * width_, width_},
                    {1, &slot, &t, offsets, &generated}, states.part(0),
                    {y.data_ptr<float>() + t * hid_, hid_},
                    {&executor, scratch.data_ptr<float>(), 0});
    t = end;
  }
  return y;
}

at::Tensor MixerRun::Encode(const at::Tensor& packed, const std::vector<int64_t>& lengths,
                            const at::Tensor& mask, int64_t grid_width) const {
  AFT_CHECK(packed.dim() == 2 && packed.size(1) == width_ && packed.is_contiguous());
  AFT_CHECK(!mask.defined() || (mask.numel() == packed.size(0) && mask.is_contiguous()));
  std::vector<int64_t> offsets = {0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  AFT_CHECK(offsets.back() == packed.size(0));
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const at::Tensor scratch = at::empty({mixer_->encode_scratch_floats(longest)}, at::kFloat);
  const SerialExecutor executor;
  at::Tensor y = at::empty({packed.size(0), hid_}, at::kFloat);
  mixer_->Encode({packed.const_data_ptr<float>(), width_},
                 {static_cast<int64_t>(lengths.size()), offsets.data(),
                  mask.defined() ? mask.const_data_ptr<float>() : nullptr, grid_width},
                 {y.data_ptr<float>(), hid_}, {&executor, scratch.data_ptr<float>(), 0});
  return y;
}

}  // namespace aft
