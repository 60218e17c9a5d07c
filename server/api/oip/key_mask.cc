#include "server/api/oip/key_mask.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/config/checks.h"

namespace aft::server::kserve {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr float kHiddenBelow = -1e30F;  // EncoderInput::mask

// Booleans are 1 where a key is visible; numbers are added to its scores.
absl::StatusOr<std::vector<float>> ReadAdditive(const InputTensor& mask) {
  const auto bad = [&](size_t i, absl::string_view why) {
    return BadField(absl::StrCat(mask.name, "[", i, "]"), why);
  };
  if (mask.datatype == "FP32") {
    AFT_ASSIGN_OR_RETURN(std::vector<float> values, ReadFloats(mask, 0, mask.elements));
    for (size_t i = 0; i < values.size(); ++i) {
      if (!(values[i] < HUGE_VALF)) return bad(i, "must be a finite number or -inf");
    }
    return values;
  }
  const absl::StatusOr<std::vector<int64_t>> flags = ReadMask(mask);
  if (!flags.ok()) {
    return BadField(mask.name,
                    absl::StrCat("must be BOOL, INT64, INT32 or FP32, got ", mask.datatype));
  }
  std::vector<float> values;
  values.reserve(flags->size());
  for (size_t i = 0; i < flags->size(); ++i) {
    const int64_t flag = (*flags)[i];
    if (flag != 0 && flag != 1) return bad(i, absl::StrCat("must be 0 or 1, got ", flag));
    values.push_back(flag == 1 ? 0.0F : kHidden);
  }
  return values;
}

absl::Status CheckCausal(const InputTensor& mask, int64_t tokens, bool causal) {
  if (!causal) {
    return BadField(mask.name, absl::StrCat(ShowShape(mask.shape),
                                            " is a mask of pairs, which only causal models take"));
  }
  AFT_ASSIGN_OR_RETURN(const std::vector<float> values, ReadAdditive(mask));
  for (int64_t i = 0; i < tokens * tokens; ++i) {
    const float value = values[static_cast<size_t>(i)];
    const bool sees = i % tokens <= i / tokens;
    if (sees ? value == 0 : value <= kHiddenBelow) continue;
    return BadField(absl::StrCat(mask.name, "[", i / tokens, "][", i % tokens, "]"),
                    absl::StrCat("must be ", sees ? "visible" : "hidden",
                                 ": of masks of pairs only the causal one is taken"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<float>> ReadKeyMask(const InputTensor& mask,
                                               absl::Span<const int64_t> shape, bool causal) {
  if (absl::MakeConstSpan(mask.shape) == shape) return ReadAdditive(mask);
  const int64_t tokens = shape.back();
  std::vector<int64_t> pairs = mask.shape;
  if (pairs.size() == 3 && pairs[2] == 1) pairs.pop_back();
  if (shape.size() == 2 && pairs == std::vector<int64_t>{tokens, tokens}) {
    AFT_RETURN_IF_ERROR(CheckCausal(mask, tokens, causal));
    return std::vector<float>();
  }
  return BadField(mask.name,
                  absl::StrCat("must have the shape of inputs_embeds without its last dimension, ",
                               ShowShape(shape), ", got ", ShowShape(mask.shape)));
}

}  // namespace aft::server::kserve
