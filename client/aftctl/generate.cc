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

// The rate of decoding on the server, without the first token; 0 if it is unknown.
double TokensPerSecond(const v1::Finished& finished) {
  const v1::Timings& timings = finished.timings();
  const v1::Usage& usage = finished.usage();
  // The timings are those of the last server, which did not generate the resumed tokens.
  const uint32_t tokens =
      usage.generated_tokens() - std::min(usage.generated_tokens(), usage.resumed_tokens());
  if (tokens < 2 || timings.total_us() <= timings.first_token_us()) return 0;
  return (tokens - 1) * 1e6 / static_cast<double>(timings.total_us() - timings.first_token_us());
}

// The summary of one sequence: "limit stop.max_tokens=64 | 64 tokens | first token after 12.3 ms |
// 512.0 tokens/s | seed 7". `first_token`: 0 if the time is unknown.
std::string Summary(const v1::Finished& finished, uint64_t seed,
                    std::chrono::nanoseconds first_token) {
  std::string line =
      absl::StrCat(WhatEndedIt(finished), " | ", TokenCount(finished.usage().generated_tokens()));
  if (first_token.count() > 0) {
    absl::StrAppendFormat(&line, " | first token after %.1f ms", Ms(first_token));
  }
  if (const double rate = TokensPerSecond(finished); rate > 0) {
    absl::StrAppendFormat(&line, " | %.1f tokens/s", rate);
  }
  absl::StrAppend(&line, " | seed ", seed);
  if (finished.has_state()) absl::StrAppend(&line, " | state ", finished.state().id());
  return line;
}

// Begins the text of each sequence with a line that has its number and seed. Returns what can be
// shown.
std::string Titles(const v1::Started& started, uint32_t sequences, InTurn& texts) {
  std::string show;
  for (uint32_t i = 0; i < sequences; ++i) {
    const std::string title =
        absl::StrCat("== ", i + 1, " of ", sequences, ", seed ", started.seed() + i, " ==\n");
    show += texts.Take(i, title, /*finished=*/false);
  }
  return show;
}

int RunGenerate(const CommonFlags& common, const GenerateFlags& flags) {
  const uint32_t sequences = std::max(flags.request.n(), 1U);
  InTurn texts(sequences, /*apart=*/true);
  return RunStream(
      common, flags, flags.request, &Client::Generate,
      [&](const v1::GenerateResponse& event) {
        std::string show = event.started().prompt().text();
        if (sequences > 1 && event.has_started()) {
          show += Titles(event.started(), sequences, texts);
        }
        return show + texts.Take(event.sequence(), event.delta().text(), event.has_finished());
      },
      [](const GenerateResult& result, Output&) {
        uint64_t seed = result.started.seed();
        PrintSummary(Summary(result.finished, seed, result.time_to_first_token));
        for (const GenerateOutput& other : result.others) {
          PrintSummary(Summary(other.finished, ++seed, std::chrono::nanoseconds(0)));
        }
      });
}

// The text as generate would have shown it.
std::string TextOf(const v1::CompleteResponse& response) {
  std::string text = response.started().prompt().text();
  if (response.answers_size() == 1) return text + response.answers(0).text();
  const auto sequences = static_cast<uint32_t>(response.answers_size());
  InTurn texts(sequences, /*apart=*/true);
  text += Titles(response.started(), sequences, texts);
  size_t index = 0;
  for (const v1::Answer& answer : response.answers()) {
    text += texts.Take(index++, answer.text(), /*finished=*/true);
  }
  return text;
}

int RunComplete(const CommonFlags& common, const GenerateFlags& flags) {
  absl::StatusOr<std::string> text = ReadText(flags);
  if (!text.ok()) return UsageError(text.status());
  v1::GenerateRequest request = flags.request;
  SetModel(flags, request);
  request.set_priority(flags.priority);
  SetText(*std::move(text), request);
  return RunCall(common, flags, [&](Client& client, const CallOptions& options, Output& output) {
    const absl::StatusOr<v1::CompleteResponse> response = client.Complete(request, options);
    if (!response.ok()) return response.status();
    const std::string shown = flags.json ? JsonLine(*response) : TextOf(*response);
    output.Write(output.is_terminal() ? ForTerminal(shown) : shown);
    output.EndLine();
    uint64_t seed = response->started().seed();
    for (const v1::Answer& answer : response->answers()) {
      PrintSummary(Summary(answer.finished(), seed++, std::chrono::nanoseconds(0)));
    }
    return response.status();
  });
}

// Adds the flags that generate and complete share.
void AddFlags(CLI::App& app, GenerateFlags& flags) {
  CLI::Option* const json = AddStream(app, "Text to continue", flags);
  AddTurn(app, flags.request);
  AddGenerationFlags(app, flags.request);
  app.add_option_function<uint32_t>(
         "--n", [&flags](uint32_t n) { flags.request.set_n(n); },
         "Number of answers to the prompt, printed one after the other; with --json each line has "
         "the number of its sequence. Answer I, from 0, has the seed + I. Default 1")
      ->check(CLI::Range(1, 16));
  AddGenerationFlags(app, flags.request, {"output", "prompt_logprobs"});
  for (const char* name : {"--logprobs", "--prompt-logprobs"}) app.get_option(name)->needs(json);
}

}  // namespace

Command AddGenerate(CLI::App& app, const CommonFlags& common) {
  auto flags = std::make_shared<GenerateFlags>();
  AddFlags(app, *flags);
  return [&common, flags] { return RunGenerate(common, *flags); };
}

Command AddComplete(CLI::App& app, const CommonFlags& common) {
  auto flags = std::make_shared<GenerateFlags>();
  AddFlags(app, *flags);
  return [&common, flags] { return RunComplete(common, *flags); };
}

}  // namespace aft::client
