// The three requests as they come over the wire. An accepted request keeps the limits, an error
// names a field, and Peek returns the model's name if it is the first field. Input: a byte that
// chooses the method and the limits, a byte that says where the message is cut into slices, the
// message.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "aft/v1/inference.pb.h"
#include "base/check.h"
#include "google/protobuf/empty.pb.h"
#include "google/protobuf/unknown_field_set.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/api/aft/encode_codec.h"
#include "server/api/aft/generate_codec.h"
#include "server/api/aft/score_codec.h"
#include "server/transport/message_bytes.h"
#include "tests/fuzz/field_path.h"
#include "tests/fuzz/target.h"
#include "tests/unit/api/decode.h"

namespace aft::fuzz {

const MemoryBound kMemory = {.fixed = 1 << 18, .per_byte = 40};

namespace {

using server::LimitsConfig;
using server::ModelFacts;

constexpr int kVocabSize = 257;  // of Decode's model
constexpr int kModelField = 1;
constexpr int kMostNameBytes = 128;

grpc::ByteBuffer InSlices(absl::string_view bytes, size_t first) {
  first = std::min(first, bytes.size());
  const grpc::Slice slices[] = {{bytes.data(), first},
                                {bytes.data() + first, bytes.size() - first}};
  return grpc::ByteBuffer(slices, 2);
}

// Returns what PeekStrings must find in valid protobuf.
std::optional<std::string> NameInFront(absl::string_view bytes) {
  google::protobuf::Empty message;
  AFT_CHECK(message.ParseFromString(std::string(bytes)));
  const google::protobuf::UnknownFieldSet& fields =
      message.GetReflection()->GetUnknownFields(message);
  if (fields.empty() || fields.field(0).number() != kModelField ||
      fields.field(0).type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
    return "";
  }
  const std::string& name = fields.field(0).length_delimited();
  return name.size() <= kMostNameBytes ? std::make_optional(name) : std::nullopt;
}

// `message`: the message that has the text.
template <typename Message>
void CheckTokens(const Message& message, const std::vector<TokenId>& tokens, int64_t most,
                 bool may_be_empty = false) {
  AFT_CHECK((may_be_empty || !tokens.empty()) && static_cast<int64_t>(tokens.size()) <= most);
  std::vector<TokenId> expected;
  for (const char c : message.has_text() ? message.text() : message.raw()) {
    expected.push_back(static_cast<unsigned char>(c));
  }
  if (message.has_tokens()) {
    expected.assign(message.tokens().ids().begin(), message.tokens().ids().end());
  }
  AFT_CHECK(tokens == expected);
  for (const TokenId id : tokens) AFT_CHECK(id >= 0 && id < kVocabSize);
}

bool IsIn(float value, float low, float high) { return value >= low && value <= high; }

// Checks that the rules are in order and within the limits, and that at least one token remains
// that does not end the output.
void CheckRules(const LogitRules& rules) {
  AFT_CHECK(!rules.rules.empty() && rules.rules.size() <= size_t{kMaxLogitRules});
  TokenId before = -1;
  int left = rules.only_these ? 0 : kVocabSize - static_cast<int>(rules.rules.size());
  for (const LogitRule& rule : rules.rules) {
    AFT_CHECK(rule.id > before && rule.id < kVocabSize && rule.ends <= 1 && rule.uncounted <= 1);
    AFT_CHECK(IsIn(rule.bias, -100, 100) || rule.bias == kBannedBias);
    before = rule.id;
    if (rule.bias != kBannedBias && rule.ends == 0) ++left;
  }
  AFT_CHECK(left > 0);
}

void CheckAccepted(const v1::GenerateRequest& message,
                   const std::vector<server::GenerationRequest>& requests,
                   const LimitsConfig& limits, int64_t most) {
  AFT_CHECK(requests.size() == 1);
  const server::GenerationRequest& request = requests.front();
  const auto resumed = static_cast<size_t>(message.resume().token_ids_size());
  AFT_CHECK(request.resumed == resumed && request.prompt.size() >= resumed);
  const auto output = request.prompt.end() - static_cast<std::ptrdiff_t>(resumed);
  CheckTokens(message, {request.prompt.begin(), output}, most, message.has_previous());
  AFT_CHECK(std::equal(output, request.prompt.end(), message.resume().token_ids().begin()));
  const SamplingParams& sampling = request.sampling;
  AFT_CHECK(IsIn(sampling.temperature, 0, 100) && IsIn(sampling.min_p, 0, 1));
  AFT_CHECK(IsIn(sampling.top_p, 0, 1) && sampling.top_p > 0);
  AFT_CHECK(IsIn(sampling.repetition_penalty, 0, 10) && sampling.repetition_penalty > 0);
  AFT_CHECK(IsIn(sampling.presence_penalty, -2, 2) && IsIn(sampling.frequency_penalty, -2, 2));
  AFT_CHECK(IsIn(sampling.penalty_decay, 0, 1) && sampling.penalty_decay > 0);
  AFT_CHECK(sampling.top_k >= 0);
  AFT_CHECK(sampling.top_logprobs >= -1 && sampling.top_logprobs <= kMaxTopLogprobs);
  const server::StopConditions& stop = request.stop;
  AFT_CHECK(stop.max_tokens >= (request.prompt_scores ? 0 : 1) &&
            stop.max_tokens <= limits.max_max_tokens);
  AFT_CHECK(stop.strings.size() <= 16 && stop.token_ids.size() <= 64);
  for (const std::string& text : stop.strings) {
    AFT_CHECK(!text.empty() && text.size() <= 256 && IsUtf8(text));
  }
  for (const TokenId id : stop.token_ids) AFT_CHECK(id >= 0 && id < kVocabSize);
  AFT_CHECK(stop.min_tokens >= 0 && stop.min_tokens <= stop.max_tokens);
  AFT_CHECK(sampling.rules != nullptr || stop.min_tokens == 0 || stop.ignore_eos);
  if (sampling.rules != nullptr) CheckRules(*sampling.rules);
  if (request.bad_words != nullptr) {
    AFT_CHECK(!request.bad_words->empty() && request.bad_words->size() <= 256);
    for (const std::vector<TokenId>& word : *request.bad_words) {
      AFT_CHECK(word.size() >= 2 && word.size() <= 64);
      for (const TokenId id : word) AFT_CHECK(id >= 0 && id < kVocabSize);
    }
  }
}

// Checks the one text of the message, or its texts in order, which must be within the limits
// together.
template <typename Message, typename Request>
void CheckTexts(const Message& message, const std::vector<Request>& requests,
                const LimitsConfig& limits, int64_t most) {
  if (message.texts().empty()) {
    AFT_CHECK(requests.size() == 1);
    return CheckTokens(message, requests.front().text, most);
  }
  AFT_CHECK(!message.has_text() && !message.has_raw() && !message.has_tokens());
  AFT_CHECK(message.texts_size() <= limits.max_texts);
  AFT_CHECK(requests.size() == static_cast<size_t>(message.texts_size()));
  int64_t tokens = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    CheckTokens(message.texts(static_cast<int>(i)), requests[i].text, most);
    tokens += static_cast<int64_t>(requests[i].text.size());
  }
  AFT_CHECK(tokens <= limits.max_prompt_tokens);
}

void CheckAccepted(const v1::ScoreRequest& message,
                   const std::vector<server::ScoringRequest>& requests, const LimitsConfig& limits,
                   int64_t most) {
  CheckTexts(message, requests, limits, most);
  for (const server::ScoringRequest& request : requests) {
    AFT_CHECK(request.top_logprobs >= 0 && request.top_logprobs <= kMaxTopLogprobs);
    AFT_CHECK(request.scored == message.resume().scores() && std::isfinite(request.logprob));
    AFT_CHECK(request.context == message.context_tokens());
    AFT_CHECK(request.cache_salt == message.cache_salt() && request.cache_salt.size() <= 64);
  }
  AFT_CHECK(message.texts().empty() || !message.has_resume());
  AFT_CHECK(message.context_tokens() == 0 || (message.texts().empty() && !message.has_previous()));
}

void CheckAccepted(const v1::EncodeRequest& message,
                   const std::vector<server::EncodingRequest>& requests, const LimitsConfig& limits,
                   int64_t most) {
  CheckTexts(message, requests, limits, most);
  for (const server::EncodingRequest& request : requests) {
    AFT_CHECK(static_cast<int>(request.pooling) == static_cast<int>(message.pooling()));
  }
}

template <typename Codec>
void Run(absl::string_view bytes, size_t cut, bool tight) {
  const grpc::ByteBuffer whole = InSlices(bytes, bytes.size());
  const grpc::ByteBuffer slices = InSlices(bytes, cut);
  const auto peeked = server::PeekStrings(slices, kModelField, kMostNameBytes).back();
  AFT_CHECK(peeked == server::PeekStrings(whole, kModelField, kMostNameBytes).back());

  typename Codec::Request message;
  typename Codec::Request other;
  const absl::Status parsed = server::ParseMessage(slices, message);
  AFT_CHECK(parsed == server::ParseMessage(whole, other));
  AFT_CHECK(whole.Length() == bytes.size() && slices.Length() == bytes.size());
  if (!parsed.ok()) {
    AFT_CHECK(absl::IsInvalidArgument(parsed) && absl::StartsWith(parsed.message(), "request: "));
    return;
  }
  AFT_CHECK(message.SerializeAsString() == other.SerializeAsString());
  AFT_CHECK(peeked == NameInFront(bytes));
  AFT_CHECK(IsUtf8(message.model()));

  LimitsConfig limits;
  ModelFacts facts;
  static const auto tokenizer = std::make_shared<FakeTokenizer>();
  facts.tokenizer = tokenizer;
  if (tight) {
    limits.max_prompt_bytes = 8;
    limits.max_prompt_tokens = 6;
    limits.max_texts = 3;
    limits.max_max_tokens = 300;
    facts.max_batch_tokens = 5;
    facts.max_seq_len = 4;
  }
  constexpr bool kGenerates = std::is_same_v<typename Codec::Request, v1::GenerateRequest>;
  const int64_t most = !tight ? limits.max_prompt_tokens : kGenerates ? 6 : 4;
  const auto requests = server::DecodeEach<Codec>(message, facts, limits);
  if (!requests.ok()) {
    constexpr size_t kMostMessageBytes = 256;  // of the status, in a header
    const absl::string_view error = requests.status().message();
    AFT_CHECK(absl::IsInvalidArgument(requests.status()) ||
              (absl::IsFailedPrecondition(requests.status()) &&
               absl::StartsWith(error, "resume.fingerprint: ")));
    AFT_CHECK(BeginsWithField(error, Codec::Request::descriptor()));
    AFT_CHECK(error.size() <= kMostMessageBytes && IsMessage(error));
    return;
  }
  CheckAccepted(message, *requests, limits, most);
}

}  // namespace
}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft;
  // Silences protobuf, which logs a line for each string that is not UTF-8.
  [[maybe_unused]] static google::protobuf::LogHandler* const before =
      google::protobuf::SetLogHandler(nullptr);
  if (size < 2) return;
  const absl::string_view bytes = fuzz::AsText(data + 2, size - 2);
  const size_t cut = data[1];
  const bool tight = data[0] / 3 % 2 == 1;
  switch (data[0] % 3) {
    case 0:
      fuzz::Run<server::GenerateCodec>(bytes, cut, tight);
      break;
    case 1:
      fuzz::Run<server::ScoreCodec>(bytes, cut, tight);
      break;
    default:
      fuzz::Run<server::EncodeCodec>(bytes, cut, tight);
  }
}
