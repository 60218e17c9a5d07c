#include "server/api/aft/texts_codec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace aft::server {

absl::Status CheckTexts(absl::string_view path,
                        const google::protobuf::RepeatedPtrField<v1::Text>& texts,
                        const LimitsConfig& limits) {
  if (texts.size() > limits.max_texts) {
    return BadField(path, absl::StrCat("must have at most ", limits.max_texts,
                                       " entries (limits.max_texts), got ", texts.size()));
  }
  size_t bytes = 0;
  for (const v1::Text& text : texts) bytes += text.text().size() + text.raw().size();
  if (static_cast<int64_t>(bytes) > limits.max_prompt_bytes) {
    return BadField(path, absl::StrCat("must have at most ", limits.max_prompt_bytes,
                                       " bytes together, got ", bytes));
  }
  return absl::OkStatus();
}

size_t CallTexts::tokens() const {
  size_t sum = 0;
  for (const std::vector<TokenId>& text : texts_) sum += text.size();
  return sum;
}

absl::StatusOr<std::vector<std::vector<TokenId>>> CallTexts::Decode(
    const google::protobuf::RepeatedPtrField<v1::Text>& texts, const TextSource& single,
    const TextRules& rules) {
  std::vector<std::vector<TokenId>> decoded;
  if (texts.empty()) {
    AFT_ASSIGN_OR_RETURN(decoded.emplace_back(), DecodeText(single, rules));
    return decoded;
  }
  if (const absl::string_view field = single.field(); !field.empty()) {
    return BadField("texts", absl::StrCat("must not be set together with ", field));
  }
  AFT_RETURN_IF_ERROR(CheckTexts("texts", texts, rules.limits));
  // All texts together may be as long as a single text. Several texts must also fit half of the
  // queue, because no client may fill more than that with more than one text.
  int64_t most = rules.limits.max_prompt_tokens;
  if (texts.size() > 1) most = std::min(most, rules.limits.max_queued_tokens / 2);
  int64_t tokens = 0;
  for (int i = 0; i < texts.size(); ++i) {
    TextSource source = TextOf(texts[i], /*oneof=*/"");
    source.path = absl::StrCat("texts[", i, "]");
    AFT_ASSIGN_OR_RETURN(decoded.emplace_back(), DecodeText(source, rules));
    tokens += static_cast<int64_t>(decoded.back().size());
    if (tokens > most) {
      return BadField("texts", absl::StrCat("must have at most ", most,
                                            " tokens together, more by texts[", i, "]"));
    }
  }
  return decoded;
}

}  // namespace aft::server
