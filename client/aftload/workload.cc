#include "client/aftload/workload.h"

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "client/tool/flag_values.h"

namespace aft::client {
namespace {

using Json = nlohmann::json;

// Returns `bytes` bytes of English words in lower case.
std::string RandomWords(size_t bytes, std::mt19937_64& random) {
  constexpr std::array<const char*, 16> kWords = {
      "the",   "and",    "she",    "he",   "of",     "to",    "in",  "was",
      "house", "letter", "sister", "very", "always", "could", "not", "evening"};
  std::string text;
  text.reserve(bytes + 8);
  while (text.size() < bytes) {
    text += kWords[random() % kWords.size()];
    text += ' ';
  }
  text.resize(bytes);
  return text;
}

bool ParsePrompt(const std::string& line, Prompt& prompt) {
  Json json;
  ParseJson(line, json);  // null if it is no JSON
  if (!json.contains("prompt") || !json["prompt"].is_string()) return false;
  prompt.text = json["prompt"];
  if (!json.contains("output_tokens")) return true;
  const Json& tokens = json["output_tokens"];
  if (!tokens.is_number_unsigned() || tokens < 1 || tokens > 1'000'000'000) return false;
  prompt.max_tokens = tokens.get<uint32_t>();
  return true;
}

// Returns the seed of a request's prompt. Loads with neighbouring seeds share no prompt. Otherwise
// the server would find the prompts of the second load in its prefix cache.
uint64_t RequestSeed(uint64_t seed, uint64_t index) { return seed * 0x9E3779B97F4A7C15 + index; }

Behaviour DrawBehaviour(const WorkloadOptions& options, std::mt19937_64& random) {
  const double drawn = std::uniform_real_distribution<double>()(random);
  if (drawn < options.cancel_share) return Behaviour::kCancels;
  if (drawn < options.cancel_share + options.slow_share) return Behaviour::kSlow;
  if (drawn < options.cancel_share + options.slow_share + options.deadline_share) {
    return Behaviour::kDeadline;
  }
  return Behaviour::kNormal;
}

}  // namespace

absl::StatusOr<std::vector<Prompt>> ReadPrompts(const std::string& path) {
  std::vector<Prompt> prompts;
  std::ifstream file(path);
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    Prompt prompt{.text = line, .max_tokens = std::nullopt};
    if (absl::EndsWith(path, ".jsonl") && !ParsePrompt(line, prompt)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ":", number,
          R"( is no object with a text "prompt" and perhaps a number "output_tokens")"));
    }
    prompts.push_back(std::move(prompt));
  }
  if (!prompts.empty()) return prompts;
  return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read or holds no prompts"));
}

Workload::Workload(const WorkloadOptions& options) : options_(options) {
  if (options_.prefix_bytes == 0) return;
  // This seed is none of those of the requests.
  std::mt19937_64 random(~options_.seed);
  for (uint32_t i = 0; i < options_.prefixes; ++i) {
    prefixes_.push_back(RandomWords(options_.prefix_bytes, random));
  }
}

PlannedRequest Workload::Make(uint64_t index) const {
  std::mt19937_64 random(RequestSeed(options_.seed, index));
  PlannedRequest planned;
  planned.behaviour = DrawBehaviour(options_, random);
  uint32_t max_tokens = options_.max_tokens.Draw(random);
  std::string text;
  if (options_.prompts.empty()) {
    if (!prefixes_.empty()) text = prefixes_[random() % prefixes_.size()];
    text += RandomWords(options_.prompt_bytes.Draw(random), random);
  } else {
    const Prompt& prompt = options_.prompts[index % options_.prompts.size()];
    text = prompt.text;
    max_tokens = prompt.max_tokens.value_or(max_tokens);
  }
  if (planned.behaviour == Behaviour::kCancels) {
    planned.cancel_after = std::uniform_int_distribution<uint32_t>(1, max_tokens)(random);
  }
  v1::GenerateRequest& request = planned.request;
  request.set_model(options_.model);
  SetText(std::move(text), request);
  request.mutable_sampling()->set_seed(options_.seed + index);
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return planned;
}

}  // namespace aft::client
