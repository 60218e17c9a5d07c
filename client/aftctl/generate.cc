#include <errno.h>
#include <string.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/aftctl/commands.h"
#include "client/aftctl/generate_printer.h"
#include "client/aftctl/prompt.h"
#include "client/tool/exit_code.h"
#include "client/tool/interrupt.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

struct GenerateFlags {
  std::string prompt = "-";
  std::string model;
  std::optional<uint32_t> max_tokens;
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_token;
  bool include_stop = false;
  bool ignore_eos = false;
  std::optional<uint32_t> logprobs;
  double deadline = 0;
  std::string request_id;
  bool json = false;
};

v1::GenerateRequest MakeRequest(const GenerateFlags& flags, std::string prompt) {
  v1::GenerateRequest request;
  request.set_model(flags.model);
  SetPrompt(std::move(prompt), request);
  v1::SamplingOptions& sampling = *request.mutable_sampling();
  if (flags.temperature) sampling.set_temperature(*flags.temperature);
  if (flags.top_k) sampling.set_top_k(*flags.top_k);
  if (flags.top_p) sampling.set_top_p(*flags.top_p);
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
  std::string prompt = flags.prompt;
  if (prompt == "-") {
    absl::StatusOr<std::string> input = ReadStdin();
    if (!input.ok()) {
      PrintError("aftctl", input.status().message());
      return kExitUsage;
    }
    prompt = *std::move(input);
  }
  const v1::GenerateRequest request = MakeRequest(flags, std::move(prompt));

  Output output;
  CancelToken cancel;
  const Interrupt interrupt(cancel);  // before the client: see there
  const auto client = Client::Create({.address = common.address});
  if (!client.ok()) {
    PrintError("aftctl", client.status().message());
    return kExitUsage;
  }

  GeneratePrinter printer(output, flags.json);
  const auto on_event = [&](const v1::GenerateResponse& event) {
    if (!printer.OnEvent(event)) cancel.Cancel();
  };
  const absl::StatusOr<GenerateResult> result =
      (*client)->Generate(request, on_event,
                          {.deadline = ToMilliseconds(flags.deadline),
                           .request_id = flags.request_id,
                           .cancel = &cancel});
  if (output.error() == EPIPE) return kExitBrokenPipe;
  if (output.error() != 0) {
    PrintError("aftctl", absl::StrCat("cannot write the output: ", strerror(output.error())));
    return kExitFailed;
  }
  if (result.ok()) {
    printer.OnFinished(*result);
    return kExitOk;
  }
  const int signal_code = interrupt.exit_code();
  printer.OnError(result.status(), signal_code != 0);
  return signal_code != 0 ? signal_code : ExitCodeOf(result.status());
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
  app.add_option("--prompt", flags.prompt,
                 "Text to continue; absent or -: standard input, as it is");
  app.add_option("--model", flags.model, "Model; may be left out when the server has only one");
  app.add_option("--max-tokens", flags.max_tokens,
                 "Most tokens to generate; default: the server's");
  app.add_option("--temperature", flags.temperature, "0 is greedy; default 1");
  app.add_option("--top-k", flags.top_k,
                 "Sample from the K likeliest tokens; 0: from all (default)");
  app.add_option("--top-p", flags.top_p,
                 "Sample from the likeliest tokens with this total probability; default 1");
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
      ->needs(app.add_flag("--json", flags.json, "One JSON object per event and line"));
  AddDeadline(app, flags.deadline);
  app.add_option("--request-id", flags.request_id, "Name of the request in the server's log");
  return [&common, owned] { return RunGenerate(common, *owned); };
}

}  // namespace aft::client
