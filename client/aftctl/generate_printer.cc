#include "client/aftctl/generate_printer.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/aftctl/commands.h"
#include "client/aftctl/json.h"

namespace aft::client {
namespace {

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

}  // namespace

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

bool GeneratePrinter::OnEvent(const v1::GenerateResponse& event) {
  if (json_) return output_.Write(Line(ToJson(event)));
  const std::string& text = event.delta().text();
  if (text.empty()) return true;
  in_line_ = text.back() != '\n';
  return output_.Write(output_.is_terminal() ? ForTerminal(text) : text);
}

void GeneratePrinter::EndLine() {
  if (in_line_ && output_.is_terminal()) output_.Write("\n");
  in_line_ = false;
}

void GeneratePrinter::OnFinished(const GenerateResult& result) {
  EndLine();
  PrintSummary(ForTerminal(Summary(result)));
}

}  // namespace aft::client
