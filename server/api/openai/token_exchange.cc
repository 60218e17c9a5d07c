#include "server/api/openai/token_exchange.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/api/aft/token_codec.h"
#include "server/api/openai/generation_request.h"
#include "server/config/checks.h"

namespace aft::server::openai {

absl::Status TokenExchange::CheckRequest() {
  AFT_ASSIGN_OR_RETURN(const JsonPtr parsed, ParseObject(TakeBody()));
  const Json& object = *parsed;
  AFT_ASSIGN_OR_RETURN(model_, StringField(object, "model"));
  const char* const field = detokenize_ ? "tokens" : "prompt";
  for (const auto& [name, value] : object.items()) {
    const bool special = !detokenize_ && name == "add_special_tokens";
    const bool strings = !detokenize_ && name == "return_token_strs" && value == Json(false);
    const bool known = name == "model" || name == field || value.is_null() || strings ||
                       (special && value.is_boolean());
    if (!known) return BadField(name, special ? "must be true or false" : "is not supported");
    if (special && !value.is_null()) special_tokens_ = value.get<bool>();
  }
  const auto value = object.find(field);
  if (value == object.end() || value->is_null()) return BadField(field, "is missing");
  if (!detokenize_) {
    AFT_ASSIGN_OR_RETURN(*text_.mutable_text(), StringField(object, field));
    return absl::OkStatus();
  }
  v1::Text text;
  if (!value->is_array()) return BadField(field, "must be a list of token ids");
  AFT_RETURN_IF_ERROR(SetText(field, *value, text));
  tokens_.mutable_token_ids()->Swap(text.mutable_tokens()->mutable_ids());
  return absl::OkStatus();
}

absl::StatusOr<DecodedRequest> TokenExchange::Decode(const ServedModel& model,
                                                     const LimitsConfig& limits) {
  std::string json;
  if (detokenize_) {
    const auto response = DetokenizeCodec::Answer(tokens_, limits, model);
    if (!response.ok()) return RenameText(response.status(), "tokens");
    json = absl::StrCat("{\"prompt\":", Quoted(response->text()), "}");
  } else {
    const auto response = TokenizeCodec::Answer(text_, limits, model, special_tokens_);
    if (!response.ok()) return RenameText(response.status(), "prompt");
    json = absl::StrCat("{\"count\":", response->token_ids_size());
    if (model.info.max_seq_len > 0) {
      absl::StrAppend(&json, ",\"max_model_len\":", model.info.max_seq_len);
    }
    absl::StrAppend(&json, ",\"tokens\":[", absl::StrJoin(response->token_ids(), ","), "]}");
  }
  outgoing_.set_value(std::move(json));
  // The answer stays until the client has read it, but only the answer is charged.
  text_ = {};
  tokens_ = {};
  return DecodedRequest();
}

}  // namespace aft::server::openai
