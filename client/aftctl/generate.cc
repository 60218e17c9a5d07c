#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/aftctl/generation_flags.h"
#include "client/aftctl/in_turn.h"
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

// "limit stop.max_tokens=64 | 64 tokens | first token after 12.3 ms | 512.0 tokens/s | seed 7", of
// that sequence.
std::string Summary(const GenerateResult& result, size_t sequence) {
  const v1::Finished& finished =
      sequence == 0 ? result.finished : result.others[sequence - 1].finished;
  std::string line =
      absl::StrCat(WhatEndedIt(finished), " | ", TokenCount(finished.usage().generated_tokens()));
  if (sequence == 0 && result.time_to_first_token.count() > 0) {
    absl::StrAppendFormat(&line, " | first token after %.1f ms", Ms(result.time_to_first_token));
  }
  if (const double rate = TokensPerSecond(finished); rate > 0) {
    absl::StrAppendFormat(&line, " | %.1f tokens/s", rate);
  }
  absl::StrAppend(&line, " | seed ", result.started.seed() + sequence);
  if (finished.has_state()) absl::StrAppend(&line, " | state ", finished.state().id());
  return line;
}

int RunGenerate(const CommonFlags& common, const GenerateFlags& flags) {
  InTurn texts(std::max(flags.request.n(), 1U));
  const bool several = flags.request.n() > 1;
  return RunStream(
      common, flags, flags.request, &Client::Generate,
      [&](const v1::GenerateResponse& event) {
        return several ? texts.Take(event) : event.delta().text();
      },
      [](const GenerateResult& result, Output&) {
        for (size_t i = 0; i <= result.others.size(); ++i) PrintSummary(Summary(result, i));
      });
}

}  // namespace

Command AddGenerate(CLI::App& app, const CommonFlags& common) {
  auto owned = std::make_shared<GenerateFlags>();
  GenerateFlags& flags = *owned;
  CLI::Option* const json = AddStream(app, "Text to continue", flags);
  AddTurn(app, flags.request);
  AddGenerationFlags(app, flags.request);
  app.add_option_function<uint32_t>(
         "--n", [&flags](uint32_t n) { flags.request.set_n(n); },
         "Answers to the prompt, one after the other; with --json each line says of which sequence "
         "it is. The seed of the I-th is seed + I. Default 1")
      ->check(CLI::Range(1, 16));
  app.add_option_function<uint32_t>(
         "--logprobs",
         [&flags](uint32_t n) { flags.request.mutable_output()->set_top_logprobs(n); },
         "With --json: log-probability of each token and of its N best alternatives")
      ->needs(json);
  return [&common, owned] { return RunGenerate(common, *owned); };
}

}  // namespace aft::client
