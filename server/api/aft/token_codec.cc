#include "server/api/aft/token_codec.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "server/api/aft/text_codec.h"
#include "server/config/checks.h"
#include "server/engine/token_bytes.h"

namespace aft::server {
namespace {

absl::Status CheckTokenizer(const ServedModel& model) {
  if (model.tokenizer != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("model \"", model.config.name, "\" has no tokenizer"));
}

}  // namespace

absl::StatusOr<v1::TokenizeResponse> TokenizeCodec::Answer(const Request& message,
                                                           const LimitsConfig& limits,
                                                           const ServedModel& model,
                                                           bool special_tokens) {
  AFT_RETURN_IF_ERROR(CheckTokenizer(model));
  const Tokenizer& tokenizer = special_tokens ? *model.tokenizer : model.tokenizer->unframed();
  const TextSource source = {.oneof = "text_to_tokenize",
                             .text = message.has_text() ? &message.text() : nullptr,
                             .raw = message.has_raw() ? &message.raw() : nullptr};
  if (source.text == nullptr && source.raw == nullptr) {
    return BadField(source.oneof, "one of text, raw must be set");
  }
  AFT_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                       DecodeText(source, {.limits = limits,
                                           .tokenizer = tokenizer,
                                           .vocab_size = model.info.vocab_size,
                                           .may_be_empty = true}));
  Response response;
  response.set_model(model.config.name);
  response.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  BytesOf(tokens, tokenizer, response.mutable_byte_ends());
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> DetokenizeCodec::Answer(const Request& message,
                                                               const LimitsConfig& limits,
                                                               const ServedModel& model) {
  constexpr char kField[] = "token_ids";
  AFT_RETURN_IF_ERROR(CheckTokenizer(model));
  const int64_t count = message.token_ids_size();
  if (count > limits.max_prompt_tokens) {
    return BadField(kField, absl::StrCat("must have at most ", limits.max_prompt_tokens,
                                         " tokens, got ", count));
  }
  std::vector<TokenId> tokens;
  tokens.reserve(static_cast<size_t>(count));
  int64_t bytes = 0;
  for (int i = 0; i < message.token_ids_size(); ++i) {
    AFT_ASSIGN_OR_RETURN(const TokenId id,
                         DecodeToken(kField, i, message.token_ids(i), model.info.vocab_size));
    tokens.push_back(id);
    // Checked before the text is made, because a token of one byte on the wire may stand for many.
    bytes += static_cast<int64_t>(TokenBytes(*model.tokenizer, id).size());
    if (bytes > limits.max_prompt_bytes) {
      return BadField(kField, absl::StrCat("must stand for at most ", limits.max_prompt_bytes,
                                           " bytes, more by token_ids[", i, "]"));
    }
  }
  Response response;
  response.set_model(model.config.name);
  response.set_raw(BytesOf(tokens, *model.tokenizer, response.mutable_byte_ends()));
  response.set_text(ToValidUtf8(response.raw()));
  return response;
}

}  // namespace aft::server
