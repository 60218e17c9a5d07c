#include "server/api/aft/text_codec.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "server/api/aft/option_rules.h"
#include "server/engine/token_bytes.h"

namespace aft::server {
namespace {

absl::Status CheckBytes(absl::string_view path, absl::string_view text,
                        const LimitsConfig& limits) {
  // Checked before tokenising, so that a hostile text costs a bounded amount of time.
  if (static_cast<int64_t>(text.size()) > limits.max_prompt_bytes) {
    return BadField(path, absl::StrCat("must have at most ", limits.max_prompt_bytes,
                                       " bytes, got ", text.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckCount(absl::string_view path, int64_t count, const TextRules& rules) {
  const int64_t most = std::min(rules.limits.max_prompt_tokens, rules.max_tokens);
  if (count <= most) return absl::OkStatus();
  const std::string whose =
      most == rules.max_tokens ? absl::StrCat(" (", rules.max_tokens_name, ")") : "";
  return BadField(path,
                  absl::StrCat("must have at most ", most, " tokens", whose, ", got ", count));
}

// The result for an empty text.
absl::StatusOr<std::vector<TokenId>> Empty(absl::string_view path, const TextRules& rules) {
  if (rules.may_be_empty) return std::vector<TokenId>();
  return BadField(path, "must not be empty");
}

absl::StatusOr<std::vector<TokenId>> DecodeIds(absl::string_view path, const v1::TokenIds& message,
                                               const TextRules& rules) {
  if (message.ids_size() == 0) return Empty(path, rules);
  AFT_RETURN_IF_ERROR(CheckCount(path, message.ids_size(), rules));
  std::vector<TokenId> tokens;
  AFT_RETURN_IF_ERROR(DecodeTokens(path, message.ids(), rules.vocab_size, tokens));
  return tokens;
}

}  // namespace

absl::StatusOr<std::vector<TokenId>> DecodeText(const TextSource& source, const TextRules& rules) {
  const absl::string_view field = source.field();
  if (field.empty()) {
    if (rules.may_be_empty) return std::vector<TokenId>();
    return BadField(source.path.empty() ? source.oneof : source.path,
                    "one of text, raw, tokens must be set");
  }
  const std::string path = absl::StrCat(source.path, source.path.empty() ? "" : ".", field);
  if (source.tokens != nullptr) return DecodeIds(path + ".ids", *source.tokens, rules);
  const std::string& text = source.text != nullptr ? *source.text : *source.raw;
  // An empty text may have the tokens that stand around each text (MakeFramedTokenizer).
  if (text.empty() && !rules.may_be_empty) return BadField(path, "must not be empty");
  AFT_RETURN_IF_ERROR(CheckBytes(path, text, rules.limits));
  absl::StatusOr<std::vector<TokenId>> tokens = rules.tokenizer.Encode(text);
  if (!tokens.ok()) return BadField(path, tokens.status().message());
  if (tokens->empty()) return Empty(path, rules);
  AFT_RETURN_IF_ERROR(CheckCount(path, static_cast<int64_t>(tokens->size()), rules));
  return tokens;
}

std::string BytesOf(const std::vector<TokenId>& tokens, const Tokenizer& tokenizer,
                    google::protobuf::RepeatedField<uint32_t>* ends) {
  std::string bytes;
  for (const TokenId id : tokens) {
    absl::StrAppend(&bytes, TokenBytes(tokenizer, id));
    if (ends != nullptr) ends->Add(static_cast<uint32_t>(bytes.size()));
  }
  return bytes;
}

absl::StatusOr<TokenId> DecodeToken(absl::string_view list, int64_t index, uint32_t id,
                                    int64_t vocab_size) {
  if (id < vocab_size) return static_cast<TokenId>(id);
  return BadField(
      absl::StrCat(list, "[", index, "]"),
      absl::StrCat("must be below ", vocab_size, ", the size of the vocabulary, got ", id));
}

absl::Status DecodeTokens(absl::string_view list,
                          const google::protobuf::RepeatedField<uint32_t>& ids, int64_t vocab_size,
                          std::vector<TokenId>& tokens) {
  tokens.reserve(tokens.size() + static_cast<size_t>(ids.size()));
  for (int i = 0; i < ids.size(); ++i) {
    AFT_ASSIGN_OR_RETURN(const TokenId id, DecodeToken(list, i, ids[i], vocab_size));
    tokens.push_back(id);
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> DecodeTopLogprobs(const v1::OutputOptions& message, int32_t unset) {
  AFT_RETURN_IF_ERROR(CheckOptions(message));
  return message.has_top_logprobs() ? static_cast<int32_t>(message.top_logprobs()) : unset;
}

absl::StatusOr<ServiceClass> DecodePriority(v1::Priority priority, ServiceClass unset) {
  switch (priority) {
    case v1::PRIORITY_UNSPECIFIED:
      return unset;
    case v1::PRIORITY_INTERACTIVE:
      return ServiceClass::kInteractive;
    case v1::PRIORITY_NORMAL:
      return ServiceClass::kNormal;
    case v1::PRIORITY_BATCH:
      return ServiceClass::kBatch;
    default:  // an unknown value, perhaps of a newer client
      return BadField("priority", absl::StrCat("must be a value of aft.v1.Priority, got ",
                                               static_cast<int>(priority)));
  }
}

absl::StatusOr<std::shared_ptr<const SequenceState>> FindInitialState(const std::string& name,
                                                                      bool continues,
                                                                      const ServedModel& model) {
  if (name.empty()) return nullptr;
  if (continues) {
    return BadField("initial_state",
                    "must not be set if the request continues a state: that text has begun");
  }
  const auto found = model.initial_states.find(name);
  if (found != model.initial_states.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, state] : model.initial_states) names.push_back(known);
  return BadField(
      "initial_state",
      absl::StrCat("the model \"", model.config.name, "\" has no state \"", Shown(name), "\"; ",
                   names.empty() ? "it has none" : "it has: ", absl::StrJoin(names, ", ")));
}

size_t AddLogprobs(const SampledToken& token, v1::TokenLogprobs& message) {
  message.set_logprob(token.logprob);
  for (const TokenLogprob& alternative : token.top) {
    v1::Alternative* top = message.add_top();
    top->set_token_id(static_cast<uint32_t>(alternative.id));
    top->set_logprob(alternative.logprob);
  }
  return 7 + 11 * token.top.size();
}

size_t AddScores(const TokenDelta& part, v1::ScoreChunk& message) {
  if (message.token_ids_size() == 0) message.set_first_index(part.first_index);
  size_t bytes = 0;
  for (const SampledToken& token : part.tokens) {
    message.add_token_ids(static_cast<uint32_t>(token.id));
    bytes += 3 + AddLogprobs(token, *message.add_logprobs());
  }
  return bytes;
}

}  // namespace aft::server
