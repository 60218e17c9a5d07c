#include "client/aftctl/generation_flags.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"

namespace aft::client {
namespace {

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

void AddGenerationFlags(CLI::App& app, v1::GenerateRequest& request) {
  v1::SamplingOptions& sampling = *request.mutable_sampling();
  v1::StopOptions& stop = *request.mutable_stop();
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
}

}  // namespace aft::client
