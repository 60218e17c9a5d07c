#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/utf8_character.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {
namespace {

class CharTokenizer : public Tokenizer {
 public:
  CharTokenizer(std::vector<std::string> characters, absl::flat_hash_map<char32_t, int32_t> ids,
                int32_t unknown)
      : characters_(std::move(characters)), ids_(std::move(ids)), unknown_(unknown) {}

  int32_t vocab_size() const override { return static_cast<int32_t>(characters_.size()); }
  int32_t eos_id() const override { return -1; }

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const Utf8Character character = FirstCharacter(text.substr(at));
      const auto found = character.size > 0 ? ids_.find(character.point) : ids_.end();
      if (found == ids_.end() && unknown_ < 0) return Refusal(text, at, character);
      ids.push_back(found == ids_.end() ? unknown_ : found->second);
      at += character.size > 0 ? character.size : 1;
    }
    return ids;
  }

  absl::string_view TokenBytes(int32_t id) const override {
    AFT_CHECK(id >= 0 && id < vocab_size());
    return id == unknown_ ? absl::string_view() : characters_[static_cast<size_t>(id)];
  }

 private:
  static absl::Status Refusal(absl::string_view text, size_t at, Utf8Character character) {
    if (character.size == 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("byte 0x%02X at byte %d is not valid UTF-8, and the model's vocabulary "
                          "has only characters",
                          static_cast<unsigned char>(text[at]), at));
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "character %s (U+%04X) at byte %d is not in the model's vocabulary",
        ShownToken(text.substr(at, character.size)), static_cast<uint32_t>(character.point), at));
  }

  const std::vector<std::string> characters_;  // by id
  const absl::flat_hash_map<char32_t, int32_t> ids_;
  const int32_t unknown_;  // -1: the vocabulary has none
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> MakeCharTokenizer(
    std::vector<std::string> characters) {
  absl::flat_hash_map<char32_t, int32_t> ids;
  int32_t unknown = -1;
  for (size_t i = 0; i < characters.size(); ++i) {
    const std::string& entry = characters[i];
    const auto id = static_cast<int32_t>(i);
    if (entry == kUnknownCharacter && unknown < 0) {
      unknown = id;
      continue;
    }
    const Utf8Character character = entry.empty() ? Utf8Character() : FirstCharacter(entry);
    if (character.size == 0 || character.size != entry.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", i, ": must be one character, got ", ShownToken(entry)));
    }
    if (!ids.emplace(character.point, id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", i, ": ", ShownToken(entry), " given more than once"));
    }
  }
  return std::make_shared<CharTokenizer>(std::move(characters), std::move(ids), unknown);
}

}  // namespace aft
