#include "server/api/oip/answer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "nlohmann/json.hpp"
#include "server/api/oip/tensors.h"
#include "server/engine/pooling.h"
#include "server/engine/token_bytes.h"

namespace aft::server::oip {
namespace {

// Returns the name that vLLM uses.
const char* ReasonName(const Outcome& outcome) {
  return outcome.reason == FinishReason::kLength ? "length" : "stop";
}
constexpr char kNotFinished[] = "None";

// Approximate sizes of a token and of an alternative, without their texts. As JSON, each is an
// object with an id and a number of up to 22 characters.
constexpr size_t kTokenBytes = 8;
constexpr size_t kAlternativeBytes = 11;  // in memory: it is not in the response
constexpr size_t kTokenJsonBytes = 72;
constexpr size_t kAlternativeJsonBytes = 80;

// The `count` largest logits of each row, as Triton writes them: "logit:index:label".
std::vector<std::string> TopClasses(const std::vector<float>& logits,
                                    const std::vector<std::string>& labels, size_t count) {
  std::vector<std::string> classes;
  std::vector<size_t> order(labels.size());
  for (size_t first = 0; first < logits.size(); first += labels.size()) {
    const float* const row = logits.data() + first;
    std::iota(order.begin(), order.end(), size_t{0});
    // Vectors of a client may make logits NaN. These come after all numbers.
    const auto rank = [row](size_t i) {
      return std::pair(std::isnan(row[i]) ? HUGE_VALF : -row[i], i);
    };
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(count);
    std::partial_sort(order.begin(), end, order.end(),
                      [&](size_t a, size_t b) { return rank(a) < rank(b); });
    std::transform(order.begin(), end, std::back_inserter(classes),
                   [&](size_t i) { return absl::StrFormat("%f:%d:%s", row[i], i, labels[i]); });
  }
  return classes;
}

}  // namespace

void GenerationAnswer::Add(const TokenDelta& delta, Part& part) {
  part.text += delta.text;
  for (const SampledToken& token : delta.tokens) {
    part.ids.push_back(token.id);
    logprob_ += double{token.logprob};
  }
}

// As vLLM writes them: one object per token, which maps ids to what is known of them.
void GenerationAnswer::AddLogprobs(const SampledToken& token, std::string& json) const {
  nlohmann::json object;
  const auto add = [&](TokenId id, float logprob) -> nlohmann::json& {
    nlohmann::json& entry = object[std::to_string(id)];
    entry["logprob"] = logprob;
    entry["decoded_token"] = std::string(TokenBytes(*tokenizer_, id));
    return entry;
  };
  add(token.id, token.logprob);
  for (size_t i = 0; i < token.top.size(); ++i) {
    add(token.top[i].id, token.top[i].logprob)["rank"] = i + 1;
  }
  absl::StrAppend(&json, json.empty() ? "" : ", ", DumpJson(object));
}

size_t GenerationAnswer::LogprobsBytes(const TokenDelta& delta) const {
  size_t bytes = delta.text.size();  // each token has its text there, too
  for (const SampledToken& token : delta.tokens) {
    bytes += kTokenJsonBytes;
    for (const TokenLogprob& other : token.top) {
      bytes += kAlternativeJsonBytes + TokenBytes(*tokenizer_, other.id).size();
    }
  }
  return bytes;
}

void GenerationAnswer::Write(const Part& part, const char* reason,
                             inference::ModelInferResponse& response) const {
  OutputWriter writer(response, form_.typed);
  if (!form_.ids && form_.Wants("text_output")) {
    writer.AddStrings("text_output", {1}, {part.text});
  }
  if (form_.ids && form_.Wants("output_ids")) writer.AddInt64("output_ids", part.ids);
  if (form_.finish_reason && form_.Wants("finish_reason")) {
    writer.AddStrings("finish_reason", {1}, {reason});
  }
  if (form_.cumulative_logprob && form_.Wants("cumulative_logprob")) {
    writer.AddFloats("cumulative_logprob", {1}, {static_cast<float>(logprob_)});
  }
  if (form_.logprobs && form_.Wants("logprobs")) {
    writer.AddStrings("logprobs", {1}, {absl::StrCat("[", part.logprobs, "]")});
  }
  if (form_.num_input_tokens && form_.Wants("num_input_tokens")) {
    writer.AddUint32("num_input_tokens", form_.prompt_tokens);
  }
  if (form_.num_output_tokens && form_.Wants("num_output_tokens")) {
    writer.AddUint32("num_output_tokens", static_cast<uint32_t>(part.ids.size()));
  }
}

void GenerationAnswer::Collect(TokenDelta delta) {
  Add(delta, kept_);
  if (!form_.logprobs) return;
  logprobs_bytes_ += LogprobsBytes(delta);
  for (SampledToken& token : delta.tokens) sampled_.push_back(std::move(token));
}

size_t GenerationAnswer::held_bytes() const {
  return kept_.text.size() + kept_.ids.size() * sizeof(int64_t) + logprobs_bytes_;
}

size_t GenerationAnswer::WireBytes(const TokenDelta& delta) const {
  if (form_.ids && delta.tokens.empty()) return 0;  // text that was held back until the end
  if (form_.logprobs) return delta.text.size() + LogprobsBytes(delta);
  size_t bytes = delta.text.size();
  for (const SampledToken& token : delta.tokens) {
    bytes += kTokenBytes + token.top.size() * kAlternativeBytes;
  }
  return bytes;
}

void GenerationAnswer::WriteToken(const TokenDelta& delta,
                                  inference::ModelInferResponse& response) {
  Part part;
  Add(delta, part);
  if (form_.logprobs) {
    for (const SampledToken& token : delta.tokens) AddLogprobs(token, part.logprobs);
  }
  Write(part, kNotFinished, response);
}

void GenerationAnswer::WriteEnd(const Outcome& outcome, inference::ModelInferResponse& response) {
  // The tokens have left already, so only the reason may be new.
  if (form_.streams && !(form_.finish_reason && form_.Wants("finish_reason"))) return;
  if (!form_.streams) kept_.text.insert(0, form_.prefix);
  for (const SampledToken& token : sampled_) AddLogprobs(token, kept_.logprobs);
  std::vector<SampledToken>().swap(sampled_);  // before the response takes as much memory
  Write(kept_, ReasonName(outcome), response);
}

void ScoringAnswer::Collect(TokenDelta delta) {
  for (const SampledToken& token : delta.tokens) {
    ids_.push_back(token.id);
    logprobs_.push_back(token.logprob);
  }
}

void ScoringAnswer::WriteEnd(const Outcome& outcome, inference::ModelInferResponse& response) {
  OutputWriter writer(response, form_.typed);
  if (form_.Wants("token_ids")) writer.AddInt64("token_ids", ids_);
  if (form_.Wants("token_logprobs")) {
    writer.AddFloats("token_logprobs", {static_cast<int64_t>(logprobs_.size())}, logprobs_);
  }
  if (form_.Wants("cumulative_logprob")) {
    writer.AddFloats("cumulative_logprob", {1}, {static_cast<float>(outcome.logprob)});
  }
  if (form_.Wants("num_input_tokens")) {
    writer.AddUint32("num_input_tokens", outcome.usage.prompt_tokens);
  }
}

size_t EncodingAnswer::most_bytes() const {
  const size_t numbers =
      (hidden_rows() + pooled_rows()) * static_cast<size_t>(form_.width) * sizeof(float);
  if (form_.top_classes == 0) return numbers;
  // A class is a string on the heap, with its score, index and label.
  constexpr size_t kClassBytes = 96;
  size_t longest_label = 0;
  for (const std::string& label : form_.labels) {
    longest_label = std::max(longest_label, label.size());
  }
  const auto classes = static_cast<size_t>(std::min(form_.top_classes, form_.width));
  return numbers + form_.lengths.size() * classes * (kClassBytes + longest_label);
}

void EncodingAnswer::Prepare() {
  hidden_.resize(hidden_rows() * static_cast<size_t>(form_.width));
  pooled_.resize(pooled_rows() * static_cast<size_t>(form_.width));
}

void EncodingAnswer::CollectRow(size_t row, std::vector<float> vectors) {
  const auto width = static_cast<size_t>(form_.width);
  if (form_.hidden) {
    const auto padded = static_cast<size_t>(form_.padded);
    std::copy(vectors.begin(), vectors.end(), hidden_.data() + row * padded * width);
    if (form_.pooled) {
      vectors =
          Pool(std::move(vectors), form_.width, form_.pooling, form_.normalize, form_.kept[row]);
    }
  }
  if (form_.pooled) std::copy(vectors.begin(), vectors.end(), pooled_.data() + row * width);
}

void EncodingAnswer::WriteEnd(const Outcome& /*outcome*/, inference::ModelInferResponse& response) {
  OutputWriter writer(response, form_.typed);
  std::vector<int64_t> batch;
  if (form_.batch) batch.push_back(static_cast<int64_t>(form_.lengths.size()));
  const auto add = [&](const char* name, std::vector<int64_t> rest, std::vector<float>& values) {
    rest.insert(rest.begin(), batch.begin(), batch.end());
    writer.AddFloats(name, rest, values);
    std::vector<float>().swap(values);
  };
  if (form_.hidden) {
    std::vector<int64_t> rest = form_.image;
    if (rest.empty()) rest.push_back(form_.padded);
    rest.push_back(form_.width);
    add("last_hidden_state", std::move(rest), hidden_);
  }
  if (!form_.pooled) return;
  if (form_.top_classes == 0) return add(form_.pooled_name, {form_.width}, pooled_);
  batch.push_back(std::min(form_.top_classes, form_.width));
  writer.AddStrings(form_.pooled_name, batch,
                    TopClasses(pooled_, form_.labels, static_cast<size_t>(batch.back())));
}

}  // namespace aft::server::oip
