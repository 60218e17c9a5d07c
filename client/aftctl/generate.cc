#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/aftctl/stream.h"

namespace aft::client {
namespace {

struct GenerateFlags : StreamFlags {
  std::optional<uint32_t> max_tokens;
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_token;
  bool include_stop = false;
  bool ignore_eos = false;
  std::optional<uint32_t> logprobs;
};

v1::GenerateRequest MakeRequest(const GenerateFlags& flags) {
  v1::GenerateRequest request;
  v1::SamplingOptions& sampling = *request.mutable_sampling();
  if (flags.temperature) sampling.set_temperature(*flags.temperature);
  if (flags.top_k) sampling.set_top_k(*flags.top_k);
  if (flags.top_p) sampling.set_top_p(*flags.top_p);
  if (flags.min_p) sampling.set_min_p(*flags.min_p);
  if (flags.repetition_penalty) sampling.set_repetition_penalty(*flags.repetition_penalty);
  if (flags.presence_penalty) sampling.set_presence_penalty(*flags.presence_penalty);
  if (flags.frequency_penalty) sampling.set_frequency_penalty(*flags.frequency_penalty);
  if (flags.seed) sampling.set_seed(*flags.seed);
  v1::StopOptions& stop = *request.mutable_stop();
  if (flags.max_tokens) stop.set_max_tokens(*flags.max_tokens);
  stop.mutable_strings()->Assign(flags.stop.begin(), flags.stop.end());
  stop.mutable_token_ids()->Assign(flags.stop_token.begin(), flags.stop_token.end());
  stop.set_include_stop_string(flags.include_stop);
  stop.set_ignore_eos(flags.ignore_eos);
  if (flags.logprobs) request.mutable_output()->set_top_logprobs(*flags.logprobs);
  return request;
}

double Ms(std::chrono::nanoseconds duration) { return static_cast<double>(duration.count()) / 1e6; }

std::string WhatEndedIt(const v1::Finished& finished) {
  switch (finished.stopped_by_case()) {
    case v1::Finished::kStopString:
      return absl::StrCat("stop string \"", absl::Utf8SafeCHexEscape(finished.stop_string()), "\"");
    case v1::Finished::kStopTokenId:
      return absl::StrCat("stop token ", finished.stop_token_id());
    case v1::Finished::kLimit:
      return absl::StrCat("limit ", finished.limit());
    case v1::Finished::STOPPED_BY_NOT_SET:
      break;
  }
  if (finished.reason() == v1::FINISH_REASON_EOS) return "end of text";
  return EnumWord(v1::FinishReason_Name(finished.reason()), "FINISH_REASON_");
}

// Of the server's decoding, the first token left out; 0 when there is nothing to divide.
double TokensPerSecond(const v1::Finished& finished) {
  const v1::Timings& timings = finished.timings();
  const uint32_t tokens = finished.usage().generated_tokens();
  if (tokens < 2 || timings.total_us() <= timings.first_token_us()) return 0;
  return (tokens - 1) * 1e6 / static_cast<double>(timings.total_us() - timings.first_token_us());
}

// "limit stop.max_tokens=64 | 64 tokens | first token after 12.3 ms | 512.0 tokens/s | seed 7".
std::string Summary(const GenerateResult& result) {
  const v1::Finished& finished = result.finished;
  std::string line =
      absl::StrCat(WhatEndedIt(finished), " | ", TokenCount(finished.usage().generated_tokens()));
  if (result.time_to_first_token.count() > 0) {
    absl::StrAppendFormat(&line, " | first token after %.1f ms", Ms(result.time_to_first_token));
  }
  if (const double rate = TokensPerSecond(finished); rate > 0) {
    absl::StrAppendFormat(&line, " | %.1f tokens/s", rate);
  }
  absl::StrAppend(&line, " | seed ", result.started.seed());
  return line;
}

int RunGenerate(const CommonFlags& common, const GenerateFlags& flags) {
  return RunStream(
      common, flags, MakeRequest(flags), &Client::Generate,
      [](const v1::GenerateResponse& event) { return event.delta().text(); },
      [](const GenerateResult& result, Output&) { PrintSummary(Summary(result)); });
}

// CLI11 takes the largest number for one that is too large. Empty: fine.
std::string CheckSeed(const std::string& text) {
  uint64_t seed = 0;
  return absl::SimpleAtoi(text, &seed) ? "" : text + " is not an integer from 0 to 2^64 - 1";
}

}  // namespace

Command AddGenerate(CLI::App& app, const CommonFlags& common) {
  auto owned = std::make_shared<GenerateFlags>();
  GenerateFlags& flags = *owned;
  CLI::Option* const json = AddStream(app, "Text to continue", flags);
  app.add_option("--max-tokens", flags.max_tokens,
                 "Most tokens to generate; default: the server's");
  app.add_option("--temperature", flags.temperature, "0 is greedy; default 1");
  app.add_option("--top-k", flags.top_k,
                 "Sample from the K likeliest tokens; 0: from all (default)");
  app.add_option("--top-p", flags.top_p,
                 "Sample from the likeliest tokens with this total probability; default 1");
  app.add_option("--min-p", flags.min_p,
                 "Sample from the tokens at least P times as likely as the likeliest; default 0");
  app.add_option("--repetition-penalty", flags.repetition_penalty,
                 "Divides the logits of tokens that the text holds already; default 1");
  app.add_option("--presence-penalty", flags.presence_penalty,
                 "Taken from the logits of tokens that were generated already; default 0");
  app.add_option("--frequency-penalty", flags.frequency_penalty,
                 "Taken from them each time that they were generated; default 0");
  app.add_option("--seed", flags.seed, "Same seed, same text; default: the server draws one")
      ->check(CheckSeed);
  // allow_extra_args(false): one value per --stop, so that nothing after it is swallowed.
  app.add_option("--stop", flags.stop, "End before this string; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--stop-token", flags.stop_token, "End at this token id; may be repeated")
      ->allow_extra_args(false);
  app.add_flag("--include-stop", flags.include_stop, "Print the stop string as well");
  app.add_flag("--ignore-eos", flags.ignore_eos, "Go on after the model's end of text");
  app.add_option("--logprobs", flags.logprobs,
                 "With --json: log-probability of each token and of its N best alternatives")
      ->needs(json);
  return [&common, owned] { return RunGenerate(common, *owned); };
}

}  // namespace aft::client
