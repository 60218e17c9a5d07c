#include "server/api/aft/logit_rules_codec.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "model/api/tokenizer.h"
#include "server/api/aft/option_rules.h"
#include "server/api/aft/text_codec.h"
#include "server/config/checks.h"

namespace aft::server {
namespace {

absl::StatusOr<std::vector<TokenId>> DecodeList(
    absl::string_view field, const google::protobuf::RepeatedField<uint32_t>& ids,
    int64_t vocab_size) {
  std::vector<TokenId> tokens;
  AFT_RETURN_IF_ERROR(DecodeTokens(field, ids, vocab_size, tokens));
  return tokens;
}

// Decodes in the order of ids: which error comes first must not depend on the order of a hash map.
absl::StatusOr<std::map<TokenId, float>> DecodeBiases(const v1::SamplingOptions& message,
                                                      int64_t vocab_size) {
  constexpr absl::string_view kField = "sampling.logit_bias";
  const std::map<uint32_t, float> sorted(message.logit_bias().begin(), message.logit_bias().end());
  std::map<TokenId, float> biases;
  for (const auto& [key, bias] : sorted) {
    AFT_ASSIGN_OR_RETURN(const TokenId id,
                         DecodeToken(kField, static_cast<int64_t>(key), key, vocab_size));
    AFT_RETURN_IF_ERROR(CheckMapped(kField, absl::StrCat(kField, "[", key, "]"), bias));
    biases.emplace(id, bias);
  }
  return biases;
}

// The package rwkv counts no token whose text is a part of this one.
std::vector<TokenId> DigitsAndSpaces(const Tokenizer& tokenizer) {
  constexpr absl::string_view kUncounted = " \t0123456789";
  std::vector<TokenId> ids;
  for (size_t begin = 0; begin < kUncounted.size(); ++begin) {
    for (size_t length = 1; begin + length <= kUncounted.size(); ++length) {
      const auto tokens = tokenizer.Encode(kUncounted.substr(begin, length));
      // The token for unknown characters has no bytes.
      if (tokens.ok() && tokens->size() == 1 && !tokenizer.TokenBytes(tokens->front()).empty()) {
        ids.push_back(tokens->front());
      }
    }
  }
  return ids;
}

absl::Status NothingLeft(const v1::SamplingOptions& message) {
  if (message.allowed_tokens_size() > 0) {
    return BadField("sampling.allowed_tokens", "must not all be banned");
  }
  return BadField(message.bad_words_size() > 0 ? "sampling.bad_words" : "sampling.banned_tokens",
                  "must leave at least one token of the vocabulary");
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LogitRules>> DecodeLogitRules(
    const v1::SamplingOptions& message, const std::vector<TokenId>& bad_words,
    const StopConditions& stop, const ServedModel& model) {
  const int64_t vocab_size = model.info.vocab_size;
  AFT_ASSIGN_OR_RETURN(const auto biases, DecodeBiases(message, vocab_size));
  AFT_ASSIGN_OR_RETURN(const auto allowed,
                       DecodeList("sampling.allowed_tokens", message.allowed_tokens(), vocab_size));
  AFT_ASSIGN_OR_RETURN(auto banned,
                       DecodeList("sampling.banned_tokens", message.banned_tokens(), vocab_size));
  banned.insert(banned.end(), bad_words.begin(), bad_words.end());
  const bool only_these = !allowed.empty();
  std::map<TokenId, LogitRule> rules;
  for (const TokenId id : allowed) rules[id] = {.id = id};
  for (const auto& [id, bias] : biases) {
    if (!only_these || rules.count(id) > 0) rules[id] = {.id = id, .bias = bias};
  }
  for (const TokenId id : banned) {
    if (only_these) {
      rules.erase(id);
    } else {
      rules[id] = {.id = id, .bias = kBannedBias};
    }
  }
  std::vector<TokenId> ends;
  if (stop.min_tokens > 0) {
    ends = stop.token_ids;
    const int32_t eos = model.tokenizer->eos_id();
    if (eos >= 0 && !stop.ignore_eos) ends.push_back(eos);
  }
  for (const TokenId id : ends) {
    const auto rule = only_these ? rules.find(id) : rules.emplace(id, LogitRule{.id = id}).first;
    if (rule != rules.end()) rule->second.ends = 1;
  }
  if (message.preset() == kRwkvPreset) {
    for (const TokenId id : DigitsAndSpaces(*model.tokenizer)) {
      const auto rule = only_these ? rules.find(id) : rules.emplace(id, LogitRule{.id = id}).first;
      if (rule != rules.end()) rule->second.uncounted = 1;
    }
  }

  int64_t left = only_these ? 0 : vocab_size - static_cast<int64_t>(rules.size());
  int64_t left_early = left;
  for (const auto& [id, rule] : rules) {
    if (rule.bias == kBannedBias) continue;
    ++left;
    if (rule.ends == 0) ++left_early;
  }
  if (left == 0) return NothingLeft(message);
  if (left_early == 0) {
    return BadField("stop.min_tokens",
                    "must be 0 if every token that may be sampled ends the output");
  }
  if (rules.empty()) return nullptr;
  auto decoded = std::make_shared<LogitRules>();
  decoded->only_these = only_these;
  decoded->rules.reserve(rules.size());
  for (const auto& [id, rule] : rules) decoded->rules.push_back(rule);
  return decoded;
}

}  // namespace aft::server
