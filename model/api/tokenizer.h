#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aft {

// Text <-> token ids. Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int32_t vocab_size() const = 0;

  // Id that ends a text, or -1 when the vocabulary has none.
  virtual int32_t eos_id() const = 0;

  // `text` may be any bytes, valid UTF-8 or not. INVALID_ARGUMENT names the first character for
  // which the vocabulary has no token, and its place; byte-level vocabularies never fail.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const = 0;

  // The tokenizer that encodes a text without the special tokens that this one adds around it.
  virtual const Tokenizer& unframed() const { return *this; }

  // A special token whose characters are in `text`. Encode never returns its id for them. Empty if
  // there is none.
  virtual absl::string_view SpecialTokenIn(absl::string_view /*text*/) const { return {}; }

  // The exact bytes that `id` stands for; empty for ids that stand for no text.
  // REQUIRES: 0 <= id < vocab_size().
  virtual absl::string_view TokenBytes(int32_t id) const = 0;
};

}  // namespace aft
