#pragma once

#include "absl/strings/string_view.h"
#include "model/api/sampling_params.h"  // TokenId
#include "model/api/tokenizer.h"

namespace aft::server {

// The bytes that a token of a model stands for. A model's vocabulary may be padded beyond the
// tokenizer's: such tokens have no bytes. REQUIRES: id >= 0.
inline absl::string_view TokenBytes(const Tokenizer& tokenizer, TokenId id) {
  return id < tokenizer.vocab_size() ? tokenizer.TokenBytes(id) : absl::string_view();
}

}  // namespace aft::server
