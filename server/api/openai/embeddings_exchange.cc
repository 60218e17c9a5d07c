#include "server/api/openai/embeddings_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "server/api/openai/generation_request.h"
#include "server/config/checks.h"

namespace aft::server::openai {
namespace {

// The four bytes of a float become at most 24 characters of JSON with the comma, for example
// -0.00012345678901234567, or 6 of base64.
constexpr size_t kTextPerByte = 6;

}  // namespace

absl::Status EmbeddingsExchange::CheckRequest() {
  AFT_ASSIGN_OR_RETURN(const JsonPtr parsed, ParseObject(TakeBody()));
  const Json& object = *parsed;
  AFT_ASSIGN_OR_RETURN(const std::string model, StringField(object, "model"));
  request_.set_model(model);
  user_ = StringField(object, "user");
  request_.set_pooling(v1::POOLING_MODEL);
  for (const auto& [name, value] : object.items()) {
    if (name == "model" || name == "input" || name == "user" || value.is_null()) continue;
    // vLLM's load tool always asks for a text that is too long to be cut. It is refused instead.
    if (name == "truncate_prompt_tokens" && value == -1) continue;
    if (name != "encoding_format" || classifies()) return BadField(name, "is not supported");
    base64_ = value == "base64";
    if (!base64_ && value != "float") return BadField(name, "must be float or base64");
  }
  const auto input = object.find("input");
  if (input == object.end()) return BadField("input", "is missing");
  AFT_ASSIGN_OR_RETURN(list_, SetTexts("input", *input, *request_.mutable_texts()));
  return absl::OkStatus();
}

absl::StatusOr<DecodedRequest> EmbeddingsExchange::Decode(const ServedModel& model,
                                                          const LimitsConfig& limits) {
  if (model.tokenizer == nullptr) return WrongTask(model, method_);
  if (classifies() && model.info.labels.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model \"", model.config.name, "\" is not a classifier"));
  }
  v1::EncodeStarted started;
  auto request = codec_.Decode(request_, limits, model, started);
  if (!request.ok()) {
    const absl::string_view text = request.status().message();
    if (!absl::StartsWith(text, "texts")) return request.status();
    const size_t dot = text.find("].");  // "texts[0].text: must ..."
    if (dot == absl::string_view::npos) {
      return absl::Status(request.status().code(), absl::StrCat("input", text.substr(5)));
    }
    return RenameText(absl::Status(request.status().code(), text.substr(dot + 2)),
                      absl::StrCat("input", list_ ? text.substr(5, dot - 4) : ""));
  }
  model_ = model.config.name;
  if (classifies()) labels_ = model.info.labels;
  DecodedRequest decoded;
  decoded.sequences = codec_.sequences();
  decoded.bytes = codec_.tokens() * sizeof(TokenId) + (decoded.sequences - 1) * kSequenceBytes;
  codec_.ExpectSequences(decoded.sequences);
  vectors_.resize(decoded.sequences);
  decoded.work = codec_.Split(*std::move(request));
  return decoded;
}

std::string EmbeddingsExchange::TextPath(uint32_t text) const {
  return list_ ? absl::StrCat("input[", text, "]") : "input";
}

size_t EmbeddingsExchange::held_bytes() const { return kTextPerByte * codec_.held_bytes(); }

void EmbeddingsExchange::AppendEmbedding(const std::vector<float>& vector,
                                         std::string& text) const {
  if (base64_) {
    const absl::string_view bytes(reinterpret_cast<const char*>(vector.data()),
                                  vector.size() * sizeof(float));
    absl::StrAppend(&text, "\"", absl::Base64Escape(bytes), "\"");
    return;
  }
  text += '[';
  for (const float x : vector) {
    if (text.back() != '[') text += ',';
    AppendNumber(double{x}, text);
  }
  text += ']';
}

OrderedJson EmbeddingsExchange::Classification(const std::vector<float>& logits) const {
  const auto most = std::max_element(logits.begin(), logits.end());
  std::vector<double> probs;
  double sum = 0;
  for (const float logit : logits) sum += probs.emplace_back(std::exp(double{logit} - *most));
  for (double& prob : probs) prob /= sum;
  return {{"label", labels_[static_cast<size_t>(most - logits.begin())]},
          {"probs", std::move(probs)},
          {"num_classes", logits.size()}};
}

// Makes vectors as text, because a list of JSON would take several times the memory.
bool EmbeddingsExchange::Finish(const Outcome& outcome, const v1::State* /*stored*/) {
  std::string text = "{\"object\":\"list\",\"data\":[";
  for (size_t i = 0; i < vectors_.size(); ++i) {
    // Each vector is freed here, because the client may take long to read the answer.
    const std::vector<float> vector = std::move(vectors_[i]);
    if (i > 0) text += ',';
    if (classifies()) {
      OrderedJson item = {{"index", i}};
      item.update(Classification(vector));
      text += DumpJson(item);
    } else {
      absl::StrAppend(&text, "{\"object\":\"embedding\",\"index\":", i, ",\"embedding\":");
      AppendEmbedding(vector, text);
      text += '}';
    }
  }
  const OrderedJson usage = {{"prompt_tokens", outcome.usage.prompt_tokens},
                             {"total_tokens", outcome.usage.prompt_tokens}};
  absl::StrAppend(&text, "],\"model\":", Quoted(model_), ",\"usage\":", DumpJson(usage), "}");
  outgoing_.set_value(std::move(text));
  return true;
}

}  // namespace aft::server::openai
