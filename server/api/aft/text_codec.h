#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "model/api/tokenizer.h"
#include "server/config/checks.h"
#include "server/config/config.h"
#include "server/engine/request.h"
#include "server/observability/metrics.h"
#include "server/registry/model_registry.h"

// Functions that the codecs of several methods of InferenceService use. Pure functions.
namespace aft::server {

// The limit of `cache_salt`.
inline constexpr size_t kMaxCacheSaltBytes = 64;

// The text of a request, in the field that has it; all null if no field has it. Borrows.
struct TextSource {
  absl::string_view oneof;  // the name of the oneof, used if no field is set
  std::string path = {};    // of the message with the field; "": the request
  const std::string* text = nullptr;
  const std::string* raw = nullptr;
  const v1::TokenIds* tokens = nullptr;

  // The name of the field that is set, or "".
  absl::string_view field() const {
    return tokens != nullptr ? "tokens" : text != nullptr ? "text" : raw != nullptr ? "raw" : "";
  }
};

template <typename Request>
TextSource TextOf(const Request& request, absl::string_view oneof) {
  return {.oneof = oneof,
          .text = request.has_text() ? &request.text() : nullptr,
          .raw = request.has_raw() ? &request.raw() : nullptr,
          .tokens = request.has_tokens() ? &request.tokens() : nullptr};
}

// The limits of a text.
struct TextRules {
  const LimitsConfig& limits;
  const Tokenizer& tokenizer;
  int64_t vocab_size;
  // A limit of the model in addition to limits.max_prompt_tokens, and its name for errors.
  int64_t max_tokens = std::numeric_limits<int64_t>::max();
  absl::string_view max_tokens_name = {};
  bool may_be_empty = false;  // the text may be empty or absent
};

// Checks and tokenises. Errors begin with the path of the field, e.g. "tokens.ids[3]: must be ...".
absl::StatusOr<std::vector<TokenId>> DecodeText(const TextSource& source, const TextRules& rules);

// `list`: the path of the list of ids, or of the map with ids as keys.
absl::StatusOr<TokenId> DecodeToken(absl::string_view list, int64_t index, uint32_t id,
                                    int64_t vocab_size);
// Checks all ids of a list, and appends them to `tokens`.
absl::Status DecodeTokens(absl::string_view list,
                          const google::protobuf::RepeatedField<uint32_t>& ids, int64_t vocab_size,
                          std::vector<TokenId>& tokens);

// The exact bytes that the tokens stand for. A model's vocabulary may be padded beyond the
// tokenizer's; such tokens stand for no bytes. `ends`, if not null, gets the position after each
// token.
std::string BytesOf(const std::vector<TokenId>& tokens, const Tokenizer& tokenizer,
                    google::protobuf::RepeatedField<uint32_t>* ends = nullptr);

// Returns output.top_logprobs, or `unset` if it is not set.
absl::StatusOr<int32_t> DecodeTopLogprobs(const v1::OutputOptions& message, int32_t unset);

// Returns `priority`, or `unset` if it is not set.
absl::StatusOr<ServiceClass> DecodePriority(v1::Priority priority, ServiceClass unset);

// The model's tuned state of that name, or null if `name` is empty. `continues`: the request has
// `previous` too, which is refused.
absl::StatusOr<std::shared_ptr<const SequenceState>> FindInitialState(const std::string& name,
                                                                      bool continues,
                                                                      const ServedModel& model);

// Both return the bytes that this adds on the wire, approximately.
size_t AddLogprobs(const SampledToken& token, v1::TokenLogprobs& message);
size_t AddScores(const TokenDelta& part, v1::ScoreChunk& message);

}  // namespace aft::server
