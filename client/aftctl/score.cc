#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/aftctl/commands.h"
#include "client/aftctl/json.h"
#include "client/aftctl/text_input.h"
#include "client/tool/exit_code.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

struct ScoreFlags {
  TextFlags text;
  CallFlags call;
  bool tokens = false;
  std::optional<uint32_t> logprobs;
};

// A line for each token: its place in the text, its id, its log-probability and, if asked for, the
// alternatives as ID:LOGPROB.
std::string Rows(const v1::ScoreChunk& chunk) {
  std::string rows;
  for (int i = 0; i < chunk.token_ids_size(); ++i) {
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

std::string Totals(const ScoreResult& result) {
  const v1::ScoreFinished& finished = result.finished;
  return absl::StrFormat(
      "tokens           %d, of them scored %d\n"
      "log-probability  %.4f\n"
      "bits per byte    %.4f\n"
      "perplexity       %.4f\n",
      result.started.tokens(), finished.scored_tokens(), finished.logprob(), BitsPerByte(finished),
      finished.perplexity());
}

int RunScore(const CommonFlags& common, const ScoreFlags& flags) {
  absl::StatusOr<std::string> text = ReadText(flags.text);
  if (!text.ok()) {
    PrintError("aftctl", text.status().message());
    return kExitUsage;
  }
  v1::ScoreRequest request;
  request.set_model(flags.call.model);
  SetText(*std::move(text), request);
  if (flags.logprobs) request.mutable_output()->set_top_logprobs(*flags.logprobs);
  return RunStream(
      common, flags.call,
      [&](const StreamCall& call) {
        if (flags.tokens) call.output.Write("  INDEX   TOKEN    LOGPROB\n");
        const auto on_event = [&](const v1::ScoreResponse& event) {
          const std::string shown = flags.call.json ? Line(ToJson(event))
                                    : flags.tokens  ? Rows(event.chunk())
                                                    : "";
          if (!call.output.Write(shown)) call.cancel.Cancel();
        };
        const auto result = call.client.Score(request, on_event, call.options);
        if (result.ok() && !flags.call.json) call.output.Write(Totals(*result));
        return result.status();
      },
      [&](Output& output, const absl::Status& status, bool interrupted) {
        ReportStreamError(output, flags.call.json, status, interrupted);
      });
}

}  // namespace

Command AddScore(CLI::App& app, const CommonFlags& common) {
  auto owned = std::make_shared<ScoreFlags>();
  ScoreFlags& flags = *owned;
  AddText(app, "Text to score", flags.text);
  CLI::Option* const json = AddCall(app, flags.call);
  app.add_flag("--tokens", flags.tokens, "Print a line for each token before the totals")
      ->excludes(json);
  app.add_option("--logprobs", flags.logprobs,
                 "With --tokens or --json: the N likeliest tokens in each place")
      ->type_name("N");
  return [&common, owned] { return RunScore(common, *owned); };
}

}  // namespace aft::client
