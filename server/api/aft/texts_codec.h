#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "base/status_macros.h"
#include "server/api/aft/text_codec.h"
#include "server/engine/request.h"

namespace aft::server {

// Checks the number of the texts and their bytes, before any of them is tokenised. Errors begin
// with `path`, the field of the texts.
absl::Status CheckTexts(absl::string_view path,
                        const google::protobuf::RepeatedPtrField<v1::Text>& texts,
                        const LimitsConfig& limits);

// The texts of a Score or Encode call. Each text is a sequence of its own; most calls have one.
// Thread-compatible.
class CallTexts {
 public:
  // These are valid until Split.
  uint32_t sequences() const { return static_cast<uint32_t>(texts_.size()); }
  size_t tokens() const;  // of all texts

  // Returns one copy of `request`, which has no text yet, for each text, and moves the text into
  // it.
  template <typename Request>
  std::vector<Request> Split(Request request) {
    std::vector<Request> requests;
    requests.reserve(texts_.size());
    for (std::vector<TokenId>& text : std::exchange(texts_, {})) {
      Request& one = requests.emplace_back(request);
      one.text = std::move(text);
    }
    return requests;
  }

 protected:
  // Checks and tokenises the texts of `message`, which are in `texts` or in `oneof`. Sets their
  // lengths in `started`. Errors begin with the path of the field.
  template <typename Message, typename Started>
  absl::Status DecodeTexts(const Message& message, absl::string_view oneof, const TextRules& rules,
                           Started& started) {
    AFT_ASSIGN_OR_RETURN(texts_, Decode(message.texts(), TextOf(message, oneof), rules));
    started.set_tokens(static_cast<uint32_t>(tokens()));
    started.clear_text_tokens();
    for (const std::vector<TokenId>& text : texts_) {
      if (!message.texts().empty()) started.add_text_tokens(static_cast<uint32_t>(text.size()));
    }
    return absl::OkStatus();
  }

 private:
  static absl::StatusOr<std::vector<std::vector<TokenId>>> Decode(
      const google::protobuf::RepeatedPtrField<v1::Text>& texts, const TextSource& single,
      const TextRules& rules);

  std::vector<std::vector<TokenId>> texts_;
};

}  // namespace aft::server
