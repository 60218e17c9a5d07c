#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/aftctl/commands.h"
#include "client/aftctl/generate_printer.h"
#include "client/aftctl/text_input.h"
#include "client/tool/exit_code.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

struct GenerateFlags {
  TextFlags text;
  CallFlags call;
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

v1::GenerateRequest MakeRequest(const GenerateFlags& flags, std::string text) {
  v1::GenerateRequest request;
  request.set_model(flags.call.model);
  SetText(std::move(text), request);
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

int RunGenerate(const CommonFlags& common, const GenerateFlags& flags) {
  absl::StatusOr<std::string> text = ReadText(flags.text);
  if (!text.ok()) {
    PrintError("aftctl", text.status().message());
    return kExitUsage;
  }
  const v1::GenerateRequest request = MakeRequest(flags, *std::move(text));
  std::optional<GeneratePrinter> printer;
  return RunStream(
      common, flags.call,
      [&](const StreamCall& call) {
        printer.emplace(call.output, flags.call.json);
        const auto on_event = [&](const v1::GenerateResponse& event) {
          if (!printer->OnEvent(event)) call.cancel.Cancel();
        };
        const auto result = call.client.Generate(request, on_event, call.options);
        if (result.ok()) printer->OnFinished(*result);
        return result.status();
      },
      [&](Output& output, const absl::Status& status, bool interrupted) {
        printer->EndLine();
        ReportStreamError(output, flags.call.json, status, interrupted);
      });
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
  AddText(app, "Text to continue", flags.text);
  CLI::Option* const json = AddCall(app, flags.call);
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
