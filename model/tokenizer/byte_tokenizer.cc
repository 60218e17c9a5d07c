#include <array>
#include <cstddef>

#include "base/check.h"
#include "model/tokenizer/tokenizers.h"

namespace aft {
namespace {

constexpr int32_t kVocabSize = 256;

class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i);
  }

  int32_t vocab_size() const override { return kVocabSize; }
  int32_t eos_id() const override { return -1; }

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    // The conversion goes through unsigned char, because char is signed and 0xE9 must become 233.
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }

  absl::string_view TokenBytes(int32_t id) const override {
    AFT_CHECK(id >= 0 && id < kVocabSize);
    return absl::string_view(&bytes_[static_cast<size_t>(id)], 1);
  }

 private:
  std::array<char, kVocabSize> bytes_;  // bytes_[i] is byte i, which TokenBytes(i) points to
};

}  // namespace

std::shared_ptr<const Tokenizer> MakeByteTokenizer() { return std::make_shared<ByteTokenizer>(); }

}  // namespace aft
