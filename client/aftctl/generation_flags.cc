#include "client/aftctl/generation_flags.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace aft::client {
namespace {

// An option that sets a field of the request, which stays unset without it.
template <typename Message, typename Value>
CLI::Option* AddField(CLI::App& app, const char* name, Message& message,
                      void (Message::*set)(Value), const char* help) {
  return app.add_option_function<Value>(
      name, [&message, set](Value value) { (message.*set)(value); }, help);
}

// "50256:-100". Empty: fine.
std::string AddBias(absl::string_view text, v1::SamplingOptions& sampling) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, ':');
  uint32_t id = 0;
  float bias = 0;
  if (!absl::SimpleAtoi(parts.first, &id) || !absl::SimpleAtof(parts.second, &bias)) {
    return absl::StrCat(text, " is not ID:BIAS");
  }
  (*sampling.mutable_logit_bias())[id] = bias;
  return "";
}

// An option that may be repeated, one id each.
void AddIds(CLI::App& app, const char* name, google::protobuf::RepeatedField<uint32_t>& field,
            const char* help) {
  app.add_option_function<std::vector<uint32_t>>(
         name, [&field](const auto& all) { field.Assign(all.begin(), all.end()); }, help)
      ->allow_extra_args(false);
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
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [&sampling](const auto& all) {
           for (const std::string& bias : all) AddBias(bias, sampling);
         },
         "Added to the logit of this token id; may be repeated")
      ->type_name("ID:BIAS")
      ->check([](const std::string& text) {
        v1::SamplingOptions ignored;
        return AddBias(text, ignored);
      })
      ->allow_extra_args(false);
  AddIds(app, "--allow-token", *sampling.mutable_allowed_tokens(),
         "Sample from these token ids alone; may be repeated");
  AddIds(app, "--ban-token", *sampling.mutable_banned_tokens(),
         "Never sample this token id; may be repeated");
  AddField(app, "--min-tokens", stop, &v1::StopOptions::set_min_tokens,
           "Nothing but a limit ends the text before so many tokens; default 0");
  // allow_extra_args(false): one value per --stop, so that nothing after it is swallowed.
  app.add_option_function<std::vector<std::string>>(
         "--stop",
         [&stop](const auto& all) {
           *stop.mutable_strings() = {all.begin(), all.end()};
         },
         "End before this string; may be repeated")
      ->allow_extra_args(false);
  AddIds(app, "--stop-token", *stop.mutable_token_ids(), "End at this token id; may be repeated");
  app.add_flag_callback(
      "--include-stop", [&stop] { stop.set_include_stop_string(true); },
      "Print the stop string as well");
  app.add_flag_callback(
      "--ignore-eos", [&stop] { stop.set_ignore_eos(true); },
      "Go on after the model's end of text");
}

}  // namespace aft::client
