#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "client/aftctl/stream.h"

namespace aft::client {
namespace {

struct ScoreFlags : StreamFlags {
  v1::ScoreRequest request;  // --previous and --store
  bool tokens = false;
  std::optional<uint32_t> logprobs;
};

// One line for each token: the number of the text if there are several, the token's place in the
// text, its id, its log-probability and, if requested, the alternatives as ID:LOGPROB.
std::string Rows(const v1::ScoreResponse& event, bool several) {
  const v1::ScoreChunk& chunk = event.chunk();
  std::string rows;
  for (int i = 0; i < chunk.token_ids_size(); ++i) {
    if (several) absl::StrAppendFormat(&rows, "%6d ", event.index());
    const v1::TokenLogprobs& logprobs = chunk.logprobs(i);
    absl::StrAppendFormat(&rows, "%7d %7d %10.4f", chunk.first_index() + static_cast<uint32_t>(i),
                          chunk.token_ids(i), logprobs.logprob());
    for (const v1::Alternative& top : logprobs.top()) {
      absl::StrAppendFormat(&rows, " %d:%.4f", top.token_id(), top.logprob());
    }
    rows += '\n';
  }
  return rows;
}

// Returns 0 if nothing was scored.
double BitsPerByte(const v1::ScoreFinished& finished) {
  if (finished.scored_bytes() == 0) return 0;
  return -finished.logprob() / std::log(2.0) / static_cast<double>(finished.scored_bytes());
}

std::string Totals(const ScoreResult& result) {
  const v1::ScoreFinished& finished = result.finished;
  std::string totals = absl::StrFormat(
      "tokens           %d, of them scored %d\n"
      "log-probability  %.4f\n"
      "bits per byte    %.4f\n"
      "perplexity       %.4f\n",
      result.started.tokens(), finished.scored_tokens(), finished.logprob(), BitsPerByte(finished),
      finished.perplexity());
  if (finished.has_state()) totals += "state            " + finished.state().id() + "\n";
  return totals;
}

// A table with one line for each text.
std::string Table(const ScoreResult& result) {
  std::string table = "  TEXT  TOKENS  SCORED  LOGPROBABILITY  BITS/BYTE  PERPLEXITY\n";
  for (size_t i = 0; i <= result.others.size(); ++i) {
    const v1::ScoreFinished& finished = i == 0 ? result.finished : result.others[i - 1].finished;
    const int text = static_cast<int>(i);
    absl::StrAppendFormat(
        &table, "%6d %7d %7d %15.4f %10.4f %11.4f%s%s\n", i,
        text < result.started.text_tokens_size() ? result.started.text_tokens(text) : 0U,
        finished.scored_tokens(), finished.logprob(), BitsPerByte(finished), finished.perplexity(),
        finished.has_state() ? " " : "", finished.state().id());
  }
  return table;
}

int RunScore(const CommonFlags& common, const ScoreFlags& flags) {
  if (flags.logprobs && !flags.tokens && !flags.json) {
    return UsageError(absl::InvalidArgumentError("--logprobs needs --tokens or --json"));
  }
  v1::ScoreRequest request = flags.request;
  if (flags.logprobs) request.mutable_output()->set_top_logprobs(*flags.logprobs);
  const bool several = flags.lines || !flags.texts.empty();
  const auto show = [&](const v1::ScoreResponse& event) -> std::string {
    if (!flags.tokens) return "";
    if (!event.has_started()) return Rows(event, several);
    return several ? "  TEXT   INDEX   TOKEN    LOGPROB\n" : "  INDEX   TOKEN    LOGPROB\n";
  };
  const auto sum_up = [&](const ScoreResult& result, Output& output) {
    if (!flags.json) output.Write(several ? Table(result) : Totals(result));
  };
  return RunStream(common, flags, request, &Client::Score, show, sum_up);
}

}  // namespace

Command AddScore(CLI::App& app, const CommonFlags& common) {
  auto owned = std::make_shared<ScoreFlags>();
  ScoreFlags& flags = *owned;
  CLI::Option* const json = AddStream(app, "Text to score", flags);
  AddTexts(app, flags);
  AddTurn(app, flags.request);
  app.add_option_function<uint32_t>(
         "--context-tokens",
         [&flags](uint32_t tokens) { flags.request.set_context_tokens(tokens); },
         "Number of tokens at the beginning that are only context: read, but not scored")
      ->type_name("N");
  app.add_option_function<std::string>(
         "--initial-state",
         [&flags](const std::string& name) { flags.request.set_initial_state(name); },
         "Begin the text from this tuned state of the model")
      ->type_name("NAME");
  app.add_flag("--tokens", flags.tokens, "Print a line for each token before the totals")
      ->excludes(json);
  app.add_option("--logprobs", flags.logprobs,
                 "With --tokens or --json: also print the N likeliest tokens at each place")
      ->type_name("N");
  return [&common, owned] { return RunScore(common, *owned); };
}

}  // namespace aft::client
