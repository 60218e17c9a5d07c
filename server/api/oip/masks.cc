#include "server/api/oip/masks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/config/checks.h"

namespace aft::server::oip {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr float kHiddenBelow = -1e30F;  // EncoderInput::mask

// Reads a mask as numbers to be added to scores.
absl::StatusOr<std::vector<float>> ReadAdditive(const InputTensor& mask, bool numbers) {
  if (numbers && mask.datatype == "FP32") {
    AFT_ASSIGN_OR_RETURN(std::vector<float> values, ReadFloats(mask, 0, mask.elements));
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] < HUGE_VALF) continue;
      return BadField(ElementPath(mask, static_cast<int64_t>(i)),
                      "must be a finite number or -inf");
    }
    return values;
  }
  AFT_ASSIGN_OR_RETURN(const std::vector<uint8_t> flags, ReadFlags(mask, numbers));
  std::vector<float> values(flags.size());
  std::transform(flags.begin(), flags.end(), values.begin(),
                 [](uint8_t flag) { return flag != 0 ? 0.0F : kHidden; });
  return values;
}

// Says where the number for a row, a query and a key is in a mask of pairs.
struct Layout {
  bool pairs = false;
  bool batch_first = false;  // [B, 1, T, Tk]; else [T, Tk, B]
  int64_t rows = 1;          // 1: the same for all rows

  int64_t Element(int64_t row, int64_t query, int64_t key, const MaskForm& form) const {
    row = rows == 1 ? 0 : row;
    return batch_first ? (row * form.queries + query) * form.keys + key
                       : (query * form.keys + key) * rows + row;
  }
};

Layout LayoutOf(const std::vector<int64_t>& shape, const MaskForm& form) {
  Layout layout;
  const auto is = [&](const std::vector<int64_t>& wanted) { return shape == wanted; };
  if (is({form.queries, form.keys})) {
    layout.pairs = true;
  } else if (shape.size() == 3 && (shape[2] == form.rows || shape[2] == 1)) {
    layout.rows = shape[2];
    layout.pairs = is({form.queries, form.keys, layout.rows});
  } else if (shape.size() == 4 && (shape[0] == form.rows || shape[0] == 1)) {
    layout.batch_first = true;
    layout.rows = shape[0];
    layout.pairs = is({layout.rows, 1, form.queries, form.keys});
  }
  return layout;
}

absl::Status CheckShape(const InputTensor& mask, const MaskForm& form, bool of_keys,
                        const Layout& layout) {
  if (!of_keys && !layout.pairs) {
    const std::string pairs = absl::StrCat(form.queries, ", ", form.keys);
    return BadField(
        mask.name,
        absl::StrCat("must have a number for each key, ", ShowShape(form.shape),
                     ", or for each pair of a query and a key, [", pairs, ", ", form.rows, "] or [",
                     form.rows, ", 1, ", pairs, "], got ", ShowShape(mask.shape)));
  }
  const bool cube = mask.shape.size() == 3 && form.rows > 1 && layout.pairs &&
                    mask.shape == std::vector<int64_t>(3, form.rows);
  if (cube || (of_keys && layout.pairs && mask.shape.size() > 2 && mask.elements > 1)) {
    return BadField(mask.name,
                    absl::StrCat(ShowShape(mask.shape), " may be of [T, T, B] or begin with B: a ",
                                 "mask of pairs must be [B, 1, T, T] here"));
  }
  if (of_keys || form.keys <= kMaxPairs / std::max<int64_t>(form.queries, 1))
    return absl::OkStatus();
  return BadField(mask.name, absl::StrCat("must have at most ", kMaxPairs, " pairs a row, got ",
                                          form.queries, " times ", form.keys));
}

// Reads the mask of one row. Returns null if it hides only what the model hides without it.
absl::StatusOr<PairMask> ReadPairs(const InputTensor& mask, const MaskForm& form,
                                   const Layout& layout, const std::vector<float>& values,
                                   int64_t row) {
  auto pairs = std::make_shared<std::vector<float>>();
  pairs->reserve(static_cast<size_t>(form.queries * form.keys));
  bool plain = true;
  for (int64_t query = 0; query < form.queries; ++query) {
    for (int64_t key = 0; key < form.keys; ++key) {
      const int64_t element = layout.Element(row, query, key, form);
      const float value = values[static_cast<size_t>(element)];
      const bool later = form.causal && key > query;
      if (later && value > kHiddenBelow) {
        return BadField(ElementPath(mask, element),
                        "must be hidden: the model is causal, and the key comes later");
      }
      if (!later && value != 0) {
        plain = false;
        if (!form.pairs) {
          return BadField(ElementPath(mask, element),
                          "must be visible: on this device the model takes no other mask of pairs");
        }
      }
      pairs->push_back(value);
    }
  }
  return plain ? PairMask() : pairs;
}

}  // namespace

absl::StatusOr<Masks> ReadMasks(const InputTensor& mask, const MaskForm& form) {
  const bool of_keys = mask.shape == form.shape;
  const Layout layout = LayoutOf(mask.shape, form);
  AFT_RETURN_IF_ERROR(CheckShape(mask, form, of_keys, layout));
  AFT_ASSIGN_OR_RETURN(std::vector<float> values, ReadAdditive(mask, form.numbers || !of_keys));
  Masks masks;
  if (of_keys) {
    masks.keys = std::move(values);
    return masks;
  }
  for (int64_t row = 0; row < form.rows; ++row) {
    if (row > 0 && layout.rows == 1) {
      masks.pairs.push_back(masks.pairs.front());
      continue;
    }
    AFT_ASSIGN_OR_RETURN(PairMask pairs, ReadPairs(mask, form, layout, values, row));
    masks.pairs.push_back(std::move(pairs));
  }
  return masks;
}

}  // namespace aft::server::oip
