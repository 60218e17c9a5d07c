#include <chrono>
#include <memory>
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
  v1::GenerateRequest request;
};

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
  if (finished.has_state()) absl::StrAppend(&line, " | state ", finished.state().id());
  return line;
}

int RunGenerate(const CommonFlags& common, const GenerateFlags& flags) {
  return RunStream(
      common, flags, flags.request, &Client::Generate,
      [](const v1::GenerateResponse& event) { return event.delta().text(); },
      [](const GenerateResult& result, Output&) { PrintSummary(Summary(result)); });
}

// An option that sets a field of the request, which stays unset without it.
template <typename Message, typename Value>
CLI::Option* AddField(CLI::App& app, const char* name, Message& message,
                      void (Message::*set)(Value), const char* help) {
  return app.add_option_function<Value>(
      name, [&message, set](Value value) { (message.*set)(value); }, help);
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
  AddTurn(app, flags.request);
  v1::SamplingOptions& sampling = *flags.request.mutable_sampling();
  v1::StopOptions& stop = *flags.request.mutable_stop();
  AddField(app, "--max-tokens", stop, &v1::StopOptions::set_max_tokens,
           "Most tokens to generate; default: the server's");
  AddField(app, "--temperature", sampling, &v1::SamplingOptions::set_temperature,
           "0 is greedy; default 1");
  AddField(app, "--top-k", sampling, &v1::SamplingOptions::set_top_k,
           "Sample from the K likeliest tokens; 0: from all (default)");
  AddField(app, "--top-p", sampling, &v1::SamplingOptions::set_top_p,
           "Sample from the likeliest tokens with this total probability; default 1");
  AddField(app, "--min-p", sampling, &v1::SamplingOptions::set_min_p,
           "Sample from the tokens at least P times as likely as the likeliest; default 0");
  AddField(app, "--repetition-penalty", sampling, &v1::SamplingOptions::set_repetition_penalty,
           "Divides the logits of tokens that the text holds already; default 1");
  AddField(app, "--presence-penalty", sampling, &v1::SamplingOptions::set_presence_penalty,
           "Taken from the logits of tokens that were generated already; default 0");
  AddField(app, "--frequency-penalty", sampling, &v1::SamplingOptions::set_frequency_penalty,
           "Taken from them each time that they were generated; default 0");
  AddField(app, "--seed", sampling, &v1::SamplingOptions::set_seed,
           "Same seed, same text; default: the server draws one")
      ->check(CheckSeed);
  // allow_extra_args(false): one value per --stop, so that nothing after it is swallowed.
  app.add_option_function<std::vector<std::string>>(
         "--stop",
         [&stop](const auto& all) {
           *stop.mutable_strings() = {all.begin(), all.end()};
         },
         "End before this string; may be repeated")
      ->allow_extra_args(false);
  app.add_option_function<std::vector<uint32_t>>(
         "--stop-token",
         [&stop](const auto& all) {
           *stop.mutable_token_ids() = {all.begin(), all.end()};
         },
         "End at this token id; may be repeated")
      ->allow_extra_args(false);
  app.add_flag_callback(
      "--include-stop", [&stop] { stop.set_include_stop_string(true); },
      "Print the stop string as well");
  app.add_flag_callback(
      "--ignore-eos", [&stop] { stop.set_ignore_eos(true); },
      "Go on after the model's end of text");
  app.add_option_function<uint32_t>(
         "--logprobs",
         [&flags](uint32_t n) { flags.request.mutable_output()->set_top_logprobs(n); },
         "With --json: log-probability of each token and of its N best alternatives")
      ->needs(json);
  return [&common, owned] { return RunGenerate(common, *owned); };
}

}  // namespace aft::client
