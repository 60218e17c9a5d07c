#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/api/tokenizer.h"

namespace aft {

// Ids 0 .. 255 are bytes, 256 ends a text, and 257 .. stand for the given multi-byte strings, so
// that tests control where token borders lie. `before_encoding` is called with each text first.
class FakeTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEos = 256;
  static constexpr int32_t kFirstWord = 257;

  using Hook = std::function<void(absl::string_view)>;

  explicit FakeTokenizer(std::vector<std::string> words = {}, Hook before_encoding = {})
      : before_encoding_(std::move(before_encoding)) {
    for (int byte = 0; byte < 256; ++byte) pieces_.emplace_back(1, static_cast<char>(byte));
    pieces_.emplace_back();
    for (std::string& word : words) pieces_.push_back(std::move(word));
  }

  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  int32_t eos_id() const override { return kEos; }
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    if (before_encoding_) before_encoding_(text);
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  absl::string_view TokenBytes(int32_t id) const override {
    return pieces_[static_cast<size_t>(id)];
  }

 private:
  std::vector<std::string> pieces_;
  const Hook before_encoding_;
};

}  // namespace aft
